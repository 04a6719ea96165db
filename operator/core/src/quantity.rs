//! Kubernetes quantities as integers.
//!
//! Grammar: `k8s.io/apimachinery/pkg/api/resource`: a decimal number and a suffix, which is a binary power
//! (`Ki` to `Ei`), a decimal power (`n` to `E`) or an exponent (`e3`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Why a quantity cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no quantity such as 500m, 2 or 4Gi")]
pub struct QuantityError(pub String);

/// The quantity in thousandths, rounded up as Kubernetes rounds.
pub fn parse_milli(quantity: &Quantity) -> Result<i128, QuantityError> {
    scaled(&quantity.0, 1000).ok_or_else(|| QuantityError(quantity.0.chars().take(64).collect()))
}

/// The quantity in whole units, such as bytes, rounded up.
pub fn parse_whole(quantity: &Quantity) -> Result<i128, QuantityError> {
    scaled(&quantity.0, 1).ok_or_else(|| QuantityError(quantity.0.chars().take(64).collect()))
}

/// Whether two texts are the same quantity, such as `0.5` and `500m`.
pub fn same(a: &str, b: &str) -> bool {
    a == b || matches!((scaled(a, 1000), scaled(b, 1000)), (Some(a), Some(b)) if a == b)
}

fn scaled(text: &str, scale: i128) -> Option<i128> {
    // Longer numbers than this overflow what follows, and mean nothing that a cluster has.
    if text.len() > 32 {
        return None;
    }
    let split = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let (mantissa, decimals) = mantissa(number)?;
    let (numerator, denominator) = multiplier(suffix)?;
    let numerator = mantissa.checked_mul(numerator)?.checked_mul(scale)?;
    let denominator = denominator.checked_mul(10_i128.checked_pow(decimals)?)?;
    Some(numerator.div_euclid(denominator) + i128::from(numerator.rem_euclid(denominator) != 0))
}

/// `-1.25` as `(-125, 2)`.
fn mantissa(number: &str) -> Option<(i128, u32)> {
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0
        || !(whole.to_owned() + fraction)
            .bytes()
            .all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let value: i128 = (whole.to_owned() + fraction).parse().ok()?;
    Some((if negative { -value } else { value }, fraction.len() as u32))
}

fn multiplier(suffix: &str) -> Option<(i128, i128)> {
    let power_of_ten = |exponent: i32| {
        let magnitude = 10_i128.checked_pow(exponent.unsigned_abs())?;
        Some(if exponent < 0 {
            (1, magnitude)
        } else {
            (magnitude, 1)
        })
    };
    match suffix {
        "n" => power_of_ten(-9),
        "u" => power_of_ten(-6),
        "m" => power_of_ten(-3),
        "" => Some((1, 1)),
        "k" => power_of_ten(3),
        "M" => power_of_ten(6),
        "G" => power_of_ten(9),
        "T" => power_of_ten(12),
        "P" => power_of_ten(15),
        "E" => power_of_ten(18),
        "Ki" => Some((1 << 10, 1)),
        "Mi" => Some((1 << 20, 1)),
        "Gi" => Some((1 << 30, 1)),
        "Ti" => Some((1 << 40, 1)),
        "Pi" => Some((1 << 50, 1)),
        "Ei" => Some((1 << 60, 1)),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
            (exponent.abs() <= 18).then(|| power_of_ten(exponent))?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn milli(text: &str) -> Option<i128> {
        parse_milli(&Quantity(text.into())).ok()
    }

    #[test]
    fn reads_every_suffix_that_kubernetes_writes() {
        for (text, expected) in [
            ("0", 0),
            ("8", 8000),
            ("500m", 500),
            ("0.5", 500),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("2k", 2_000_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("100n", 1),
            ("-1", -1000),
            ("+2", 2000),
        ] {
            assert_eq!(milli(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in [
            "",
            "x",
            "1x",
            "1.2.3",
            "--1",
            "1-1",
            "Mi",
            ".",
            "1e",
            "1e99",
            "1 Gi",
            "9999999999999999999999999999999999E",
        ] {
            assert_eq!(milli(text), None, "{text}");
        }
    }

    #[test]
    fn equal_quantities_are_the_same_however_they_are_written() {
        assert!(
            same("0.5", "500m")
                && same("1Gi", "1024Mi")
                && !same("1G", "1Gi")
                && !same("a", "b")
                && same("a", "a")
        );
    }

    proptest! {
        #[test]
        fn whole_numbers_read_as_themselves(value in 0_i64..1_000_000_000) {
            prop_assert_eq!(parse_whole(&Quantity(value.to_string())).unwrap(), i128::from(value));
            prop_assert_eq!(milli(&format!("{value}m")), Some(i128::from(value)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = milli(&text);
        }
    }
}
