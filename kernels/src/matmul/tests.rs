use proptest::prelude::*;

use super::*;
use crate::activation::quantise_rows;
use crate::format::dequantise;
use crate::pack::tests::random_blocks;

struct Case {
    format: Format,
    n: usize,
    k: usize,
    packed: PackedMatrix,
    weights: Vec<f32>,
    x: Vec<f32>,
}

impl Case {
    fn new(format: Format, rows: usize, n: usize, units: usize, seed: u64) -> Self {
        let k = units * format.block_elements();
        let bytes = random_blocks(format, n * units, seed);
        let packed =
            PackedMatrix::pack(&ThreadPool::new(1).unwrap(), format, n, k, &bytes).unwrap();
        let mut weights = vec![0.0; n * k];
        dequantise(format, &bytes, &mut weights);
        // Every 50th value is an outlier, so that rows have blocks with second bytes and blocks without.
        let size = |i: usize| 1.0 + (i % 7) as f32 + if i.is_multiple_of(50) { 30.0 } else { 0.0 };
        let wave = |i: usize| ((i as f32 + (seed % 1000) as f32) * 0.37).sin() * size(i);
        Self {
            format,
            n,
            k,
            packed,
            weights,
            x: (0..rows * k).map(wave).collect(),
        }
    }

    /// The product in double precision, of the activations as the format sees them.
    fn truth(&self, x: &[f32]) -> Vec<f64> {
        let dot = |x: &[f32], w: &[f32]| {
            x.iter()
                .zip(w)
                .map(|(&x, &w)| f64::from(x) * f64::from(w))
                .sum()
        };
        x.chunks(self.k)
            .flat_map(|x| self.weights.chunks(self.k).map(move |w| dot(x, w)))
            .collect()
    }

    /// Squared error over the squared terms of the products, which no cancellation makes small.
    fn error_a_term(&self, got: &[f32]) -> f64 {
        let error: f64 = got
            .iter()
            .zip(self.truth(&self.x))
            .map(|(&g, t)| (f64::from(g) - t).powi(2))
            .sum();
        let square = |x: &[f32], w: &[f32]| -> f64 {
            x.iter()
                .zip(w)
                .map(|(&x, &w)| (f64::from(x) * f64::from(w)).powi(2))
                .sum()
        };
        let rows = self.x.chunks(self.k);
        error
            / rows
                .map(|x| {
                    self.weights
                        .chunks(self.k)
                        .map(|w| square(x, w))
                        .sum::<f64>()
                })
                .sum::<f64>()
                .max(1e-30)
    }

    fn quantised(&self, cpu: Cpu) -> Option<QuantisedRows> {
        let mut q8 = QuantisedRows::default();
        if self.format.is_quantised() {
            quantise_rows(cpu, &ThreadPool::new(1).unwrap(), &self.x, self.k, &mut q8);
        }
        self.format.is_quantised().then_some(q8)
    }

    fn product(&self, cpu: Cpu, threads: usize, rows: Range<usize>) -> Vec<f32> {
        let q8 = self.quantised(cpu).map(|q8| q8.part(rows.clone()));
        let (k, q8) = (self.k, q8.as_ref());
        let input = Input {
            rows: rows.len(),
            k,
            f32: &self.x[rows.start * k..rows.end * k],
            q8,
        };
        let mut out = vec![f32::NAN; rows.len() * self.n];
        matmul(
            cpu,
            &ThreadPool::new(threads).unwrap(),
            &[&self.packed],
            input,
            Output::Store(&mut out),
        );
        out
    }
}

/// Squared error over squared size.
fn nmse(got: &[f32], truth: &[f64]) -> f64 {
    let error: f64 = got
        .iter()
        .zip(truth)
        .map(|(&g, t)| (f64::from(g) - t).powi(2))
        .sum();
    error / truth.iter().map(|t| t * t).sum::<f64>().max(1e-30)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn products_match_dequantised_weights_and_paths_agree_bit_for_bit(
        format in prop::sample::select(Format::ALL.to_vec()),
        rows in 1usize..20, n in 1usize..50, units in 1usize..5, seed: u64,
    ) {
        let case = Case::new(format, rows, n, units, seed);
        let portable = case.product(Cpu::portable(), 1, 0..rows);
        if let Some(q8) = case.quantised(Cpu::portable()) {
            // Exact but for rounding on the activations the kernel saw, close on those it was given.
            prop_assert!(nmse(&portable, &case.truth(&q8.values())) <= 1e-9);
            prop_assert!(case.error_a_term(&portable) <= 5e-4);
        } else {
            prop_assert!(case.error_a_term(&portable) <= 1e-11);
        }
        for cpu in Cpu::available() {
            prop_assert_eq!(bits(&case.product(cpu, 2, 0..rows)), bits(&portable), "{}", cpu.name());
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_any_batch_and_on_any_threads(
        format in prop::sample::select(Format::ALL.to_vec()), rows in 2usize..40, seed: u64, cut in 0usize..40, threads in 1usize..4,
    ) {
        for cpu in Cpu::available() {
            let case = Case::new(format, rows, 37, 2, seed);
            let whole = case.product(cpu, 1, 0..rows);
            let cut = cut % rows;
            let mut parts = case.product(cpu, threads, 0..cut.max(1));
            if cut.max(1) < rows {
                parts.extend(case.product(cpu, threads, cut.max(1)..rows));
            }
            prop_assert_eq!(bits(&parts), bits(&whole));
            let alone = case.product(cpu, threads, cut..cut + 1);
            prop_assert_eq!(bits(&alone), bits(&whole[cut * case.n..(cut + 1) * case.n]));
        }
    }
}

#[test]
fn the_batch_test_would_notice_another_order_of_summation() {
    // The inverse of the property above: the same blocks added from the far end give other bits.
    let mut case = Case::new(Format::Q4_1, 4, 16, 8, 11);
    let forward = case.product(Cpu::detect(), 1, 0..4);
    let bytes = random_blocks(Format::Q4_1, 16 * 8, 11);
    let reversed: Vec<u8> = bytes
        .chunks(20 * 8)
        .flat_map(|row| row.chunks(20).rev().flatten().copied())
        .collect();
    case.packed = PackedMatrix::pack(
        &ThreadPool::new(1).unwrap(),
        Format::Q4_1,
        16,
        case.k,
        &reversed,
    )
    .unwrap();
    case.x = case
        .x
        .chunks(case.k)
        .flat_map(|row| row.chunks(BLOCK).rev().flatten().copied())
        .collect();
    let backward = case.product(Cpu::detect(), 1, 0..4);
    assert_ne!(bits(&forward), bits(&backward));
    assert!(
        forward
            .iter()
            .zip(&backward)
            .all(|(a, b)| (a - b).abs() <= 1e-3 * a.abs().max(1.0))
    );
}

#[test]
fn extreme_quants_do_not_overflow_any_path() {
    for format in Format::ALL.into_iter().filter(|f| f.is_quantised()) {
        for fill in [0x00, 0x7f, 0x80, 0xff] {
            let mut case = Case::new(format, 5, 16, 2, 3);
            let mut bytes = random_blocks(format, 32, 3);
            for block in bytes.chunks_mut(format.block_bytes()) {
                let halves = format.half_fields().to_vec();
                let scales: Vec<[u8; 2]> = halves
                    .iter()
                    .map(|&at| [block[at], block[at + 1]])
                    .collect();
                block.fill(fill);
                for (at, scale) in halves.into_iter().zip(scales) {
                    block[at..at + 2].copy_from_slice(&scale);
                }
            }
            case.packed =
                PackedMatrix::pack(&ThreadPool::new(1).unwrap(), format, 16, case.k, &bytes)
                    .unwrap();
            dequantise(format, &bytes, &mut case.weights);
            for sign in [1.0, -1.0] {
                case.x.fill(sign);
                let portable = case.product(Cpu::portable(), 1, 0..5);
                assert!(
                    nmse(&portable, &case.truth(&case.x)) <= 1e-9,
                    "{format:?} {fill:#x}"
                );
                for cpu in Cpu::available() {
                    assert_eq!(
                        bits(&case.product(cpu, 1, 0..5)),
                        bits(&portable),
                        "{format:?} {fill:#x} {}",
                        cpu.name()
                    );
                }
            }
        }
    }
}

#[test]
fn several_weights_side_by_side_equal_each_alone_and_add_accumulates() {
    let pool = ThreadPool::new(2).unwrap();
    for cpu in Cpu::available() {
        let (a, b) = (
            Case::new(Format::Q4_1, 9, 40, 3, 1),
            Case::new(Format::F16, 9, 7, 96, 2),
        );
        let (first, q8) = (a.product(cpu, 1, 0..9), a.quantised(cpu));
        let input = Input {
            rows: 9,
            k: 96,
            f32: &a.x,
            q8: q8.as_ref(),
        };
        let mut second = vec![0.0; 9 * 7];
        matmul(cpu, &pool, &[&b.packed], input, Output::Store(&mut second));
        let mut both = vec![1.0; 9 * 47];
        matmul(
            cpu,
            &pool,
            &[&a.packed, &b.packed],
            input,
            Output::Add(&mut both),
        );
        for r in 0..9 {
            let alone = first[r * 40..][..40].iter().chain(&second[r * 7..][..7]);
            assert!(alone.zip(&both[r * 47..][..47]).all(|(x, y)| 1.0 + x == *y));
        }
    }
}

#[test]
fn gated_product_equals_its_parts_and_its_quantised_form() {
    let pool = ThreadPool::new(2).unwrap();
    let cases = Cpu::available().into_iter().flat_map(|cpu| {
        [
            (cpu, 96, Activation::Silu),
            (cpu, 64, Activation::GeluTanh),
            (cpu, 37, Activation::GeluTanh),
        ]
    });
    for (cpu, n, activation) in cases {
        let (gate, up) = (
            Case::new(Format::Q8_0, 19, n, 2, 5),
            Case::new(Format::Q4_0, 19, n, 2, 6),
        );
        let q8 = gate.quantised(cpu);
        let input = Input {
            rows: 19,
            k: 64,
            f32: &[],
            q8: q8.as_ref(),
        };
        let mut parts = [vec![0.0; 19 * n], vec![0.0; 19 * n]];
        for (case, out) in [&gate, &up].into_iter().zip(&mut parts) {
            matmul(cpu, &pool, &[&case.packed], input, Output::Store(out));
        }
        crate::activate_rows(cpu, activation, &mut parts[0]);
        let expected: Vec<f32> = parts[0].iter().zip(&parts[1]).map(|(g, u)| g * u).collect();
        let mut fused = vec![0.0; 19 * n];
        gated(
            cpu,
            &pool,
            activation,
            &gate.packed,
            &up.packed,
            input,
            Output::Store(&mut fused),
        );
        assert_eq!(bits(&fused), bits(&expected), "{} {n}", cpu.name());
        if n.is_multiple_of(BLOCK) {
            let mut blocks = [QuantisedRows::default(), QuantisedRows::default()];
            quantise_rows(cpu, &pool, &expected, n, &mut blocks[0]);
            gated(
                cpu,
                &pool,
                activation,
                &gate.packed,
                &up.packed,
                input,
                Output::Quantise(&mut blocks[1]),
            );
            assert_eq!(blocks[0], blocks[1]);
        }
    }
}

#[test]
#[should_panic(expected = "quantised weights need quantised rows")]
fn a_missing_form_of_the_input_is_a_programming_error() {
    let case = Case::new(Format::Q4_1, 1, 16, 1, 1);
    let input = Input {
        rows: 1,
        k: 32,
        f32: &case.x,
        q8: None,
    };
    matmul(
        Cpu::detect(),
        &ThreadPool::new(1).unwrap(),
        &[&case.packed],
        input,
        Output::Store(&mut [0.0; 16]),
    );
}
