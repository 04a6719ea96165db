//! What a request tells the scheduler: how urgent it is, until when it is worth anything, and whose cache it may read. None of it is
//! OpenAI's.

use std::time::Duration;

use pagoda_engine_core::{CacheScope, Class, ScopeParts};

use super::errors::ApiError;
use super::fields::Fields;

/// Bytes of `cache_salt` at most.
const MAX_SALT_BYTES: usize = 256;

/// `timeout_seconds` at most: a day.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scheduling {
    /// How urgent the request is.
    pub class: Class,
    /// Whose stored keys and values it may read.
    pub scope: CacheScope,
    /// Time after its arrival at which it is worth nothing any more.
    pub timeout: Option<Duration>,
}

impl Scheduling {
    /// Takes `priority`, `cache_salt` and `timeout_seconds`.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            class: class(fields)?,
            scope: scope(fields)?,
            timeout: timeout(fields)?,
        })
    }
}

/// As in vLLM: 0, the default, goes first.
fn class(fields: &mut Fields) -> Result<Class, ApiError> {
    let priority = fields.take::<i64>("priority")?.unwrap_or(0);
    u8::try_from(priority).map(Class).map_err(|_| {
        ApiError::bad_param(
            "priority",
            format!("'priority' must be between 0 (the most urgent) and 255, got {priority}"),
        )
    })
}

/// Requests of different salts share no stored keys and values, so that none learns from its own speed what others ask.
fn scope(fields: &mut Fields) -> Result<CacheScope, ApiError> {
    let salt = fields.take::<String>("cache_salt")?.unwrap_or_default();
    if salt.len() > MAX_SALT_BYTES {
        return Err(ApiError::bad_param(
            "cache_salt",
            format!("'cache_salt' must have at most {MAX_SALT_BYTES} bytes"),
        ));
    }
    Ok(CacheScope::of(&ScopeParts {
        tenant_salt: salt.as_bytes(),
        ..ScopeParts::default()
    }))
}

fn timeout(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = fields.take::<f64>("timeout_seconds")? else {
        return Ok(None);
    };
    if !(seconds > 0.0 && seconds <= MAX_TIMEOUT_SECONDS) {
        return Err(ApiError::bad_param(
            "timeout_seconds",
            format!(
                "'timeout_seconds' must be above 0 and at most {MAX_TIMEOUT_SECONDS}, got {seconds}"
            ),
        ));
    }
    Ok(Some(Duration::from_secs_f64(seconds)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn take(body: &Value) -> Result<Scheduling, ApiError> {
        Scheduling::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn what_is_said_reaches_the_scheduler_and_what_is_not_changes_nothing() {
        let body = json!({"priority": 3, "cache_salt": "tenant", "timeout_seconds": 1.5});
        let scheduling = take(&body).unwrap();
        assert_eq!(scheduling.class, Class(3));
        assert_ne!(scheduling.scope, CacheScope::default());
        assert_eq!(scheduling.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(take(&json!({})).unwrap(), Scheduling::default());
    }

    #[test]
    fn values_out_of_range_name_their_parameter() {
        for (body, param) in [
            (json!({"priority": -1}), "priority"),
            (json!({"priority": 256}), "priority"),
            (json!({"cache_salt": "x".repeat(300)}), "cache_salt"),
            (json!({"timeout_seconds": 0}), "timeout_seconds"),
            (json!({"timeout_seconds": -1}), "timeout_seconds"),
            (json!({"timeout_seconds": 1e300}), "timeout_seconds"),
            (json!({"timeout_seconds": "1"}), "timeout_seconds"),
        ] {
            let error = take(&body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
