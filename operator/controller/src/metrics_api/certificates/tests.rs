use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::{ServerName, UnixTime},
    server::NoClientAuth,
};

use super::*;

const NAME: &str = "pagoda-metrics.pagoda-system.svc";

fn names() -> Vec<String> {
    vec![NAME.to_owned()]
}

fn day(days: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000 + days * 86_400).expect("a time of the test")
}

/// Whether a client that believes `bundle` takes what `keys` serve at that moment.
fn is_believed(keys: &Keys, bundle: &str, name: &str, now: OffsetDateTime) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in certificates(bundle).expect("a bundle") {
        roots.add(authority).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .expect("a verifier");
    let certificate = first(&keys.certificate).expect("a certificate");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let seconds = std::time::Duration::from_secs(now.unix_timestamp().unsigned_abs());
    let now = UnixTime::since_unix_epoch(seconds);
    verifier
        .verify_server_cert(&certificate, &[], &name, &[], now)
        .is_ok()
}

#[test]
fn the_api_server_believes_the_certificate_under_the_services_name_alone() {
    let keys = renewed(None, &names(), day(0)).expect("keys");
    assert!(is_believed(&keys, keys.bundle(), NAME, day(0)));
    assert!(is_believed(&keys, keys.bundle(), NAME, day(89)));
    assert!(!is_believed(&keys, keys.bundle(), NAME, day(91)));
    assert!(!is_believed(
        &keys,
        keys.bundle(),
        "pagoda-metrics.elsewhere.svc",
        day(0)
    ));
    let others = renewed(None, &names(), day(0)).expect("keys");
    assert!(!is_believed(&keys, others.bundle(), NAME, day(0)));
}

#[test]
fn what_lies_in_the_secret_is_used_again_until_it_is_late() {
    let keys = renewed(None, &names(), day(0)).expect("keys");
    let again = Keys::read(&keys.data()).expect("all parts");
    let later = renewed(Some(&again), &names(), day(59)).expect("keys");
    assert!(later == keys);
    let late = renewed(Some(&again), &names(), day(61)).expect("keys");
    assert!(late.certificate != keys.certificate && late.bundle == keys.bundle);
    assert!(is_believed(&late, keys.bundle(), NAME, day(120)));
}

#[test]
fn another_name_and_spoilt_parts_are_made_anew() {
    let keys = renewed(None, &names(), day(0)).expect("keys");
    let elsewhere = vec!["pagoda-metrics.elsewhere.svc".to_owned()];
    let moved = renewed(Some(&keys), &elsewhere, day(1)).expect("keys");
    assert!(is_believed(&moved, keys.bundle(), &elsewhere[0], day(1)));
    for spoil in [
        |keys: &mut Keys| keys.key = "nonsense".to_owned(),
        |keys: &mut Keys| keys.certificate = String::new(),
        |keys: &mut Keys| keys.authority_key = "nonsense".to_owned(),
        |keys: &mut Keys| keys.bundle = "nonsense".to_owned(),
    ] {
        let mut spoilt = keys.clone();
        spoil(&mut spoilt);
        let cured = renewed(Some(&spoilt), &names(), day(1)).expect("keys");
        assert!(is_believed(&cured, cured.bundle(), NAME, day(1)));
        assert!(cured.server(Arc::new(NoClientAuth)).is_ok());
    }
    assert!(Keys::read(&BTreeMap::new()).is_none());
}

#[test]
fn a_new_authority_stands_beside_the_old_one_until_that_ends() {
    let keys = renewed(None, &names(), day(0)).expect("keys");
    let years = 4 * 365;
    let old = renewed(Some(&keys), &names(), day(1)).expect("keys");
    let new = renewed(Some(&old), &names(), day(years)).expect("keys");
    assert_eq!(certificates(new.bundle()).expect("a bundle").len(), 2);
    assert!(is_believed(&new, new.bundle(), NAME, day(years)));
    let third = renewed(Some(&new), &names(), day(years * 2)).expect("keys");
    let authorities = certificates(third.bundle()).expect("a bundle");
    assert_eq!(authorities.len(), 2, "those that have ended are gone");
    assert!(is_believed(&third, third.bundle(), NAME, day(years * 2)));
}
