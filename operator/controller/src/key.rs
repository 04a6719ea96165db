//! Name of an object inside a cluster.

use std::{borrow::Borrow, fmt, sync::Arc};

/// `NAMESPACE/NAME`, or `/NAME` of an object without a namespace. Cheap to copy: everything that knows an object shares one
/// text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// Key of an object.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// Namespace, empty for an object that has none.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Name inside the namespace.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Whether it lies in a namespace; every key lies in `None`.
    pub fn is_within(&self, namespace: Option<&str>) -> bool {
        namespace.is_none_or(|namespace| namespace == self.namespace())
    }

    fn parts(&self) -> (&str, &str) {
        // Neither namespaces nor names hold a slash.
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

/// A key is found by its text: `NAMESPACE/NAME`.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_no_prefix_of_another() {
        let key = Key::new("team-a", "chat");
        assert_eq!((key.namespace(), key.name()), ("team-a", "chat"));
        assert!(key.is_within(None) && key.is_within(Some("team-a")));
        assert!(!key.is_within(Some("team")));
    }
}
