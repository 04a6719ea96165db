//! Checks AWS signatures, version 4, from the other side than whoever makes them.

use sha2::{Digest, Sha256};

use super::Head;

pub const KEY_ID: &str = "AKIDEXAMPLE";
pub const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let pad = |with: u8| block.iter().map(|byte| byte ^ with).collect::<Vec<u8>>();
    let inner = Sha256::digest([pad(0x36), message.to_vec()].concat());
    Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let digits =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap());
    bytes.iter().flat_map(digits).collect()
}

/// Whether a GET carries a sound signature of [`KEY_ID`] for `region`.
pub fn is_signed(head: &Head, region: &str) -> bool {
    let Some(authorization) = head.header("authorization") else {
        return false;
    };
    let part = |name: &str| {
        let (_, rest) = authorization.split_once(name).unwrap();
        rest.split(',').next().unwrap().trim().to_owned()
    };
    let (credential, names, signature) = (
        part("Credential="),
        part("SignedHeaders="),
        part("Signature="),
    );
    let (time, payload) = (
        head.header("x-amz-date").unwrap(),
        head.header("x-amz-content-sha256").unwrap(),
    );
    let day = &time[..8];
    let scope = format!("{day}/{region}/s3/aws4_request");
    let headers: Vec<String> = names
        .split(';')
        .map(|name| format!("{name}:{}", head.header(name).unwrap().trim()))
        .collect();
    let headers = headers.join("\n");
    let canonical = format!(
        "GET\n{}\n{}\n{headers}\n\n{names}\n{payload}",
        head.path, head.query
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{time}\n{scope}\n{}",
        hex(&Sha256::digest(canonical))
    );
    let mut key = format!("AWS4{SECRET}").into_bytes();
    for step in [day, region, "s3", "aws4_request"] {
        key = hmac(&key, step.as_bytes());
    }
    credential == format!("{KEY_ID}/{scope}") && signature == hex(&hmac(&key, to_sign.as_bytes()))
}
