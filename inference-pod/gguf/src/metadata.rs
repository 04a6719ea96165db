//! Typed metadata: keys to values, with errors that name the key.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::shown;

/// A metadata value as the file states it.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the format's own types.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array, all of one type.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The variants are the format's own types.
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "an array of u8",
            Self::I8(_) => "an array of i8",
            Self::U16(_) => "an array of u16",
            Self::I16(_) => "an array of i16",
            Self::U32(_) => "an array of u32",
            Self::I32(_) => "an array of i32",
            Self::F32(_) => "an array of f32",
            Self::Bool(_) => "an array of booleans",
            Self::String(_) => "an array of strings",
            Self::Array(_) => "an array of arrays",
            Self::U64(_) => "an array of u64",
            Self::I64(_) => "an array of i64",
            Self::F64(_) => "an array of f64",
        }
    }
}

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(array) => array.type_name(),
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// Why a metadata key could not be read as what the caller needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The key is not there.
    #[error("metadata key {key} is missing")]
    Missing {
        /// The key.
        key: String,
    },
    /// The key holds another type.
    #[error("metadata key {key} is {found}, expected {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file holds.
        found: &'static str,
    },
    /// The key holds a number outside the wanted range.
    #[error("metadata key {key} holds {value}, which is out of range for {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The number.
        value: String,
        /// What was asked for.
        expected: &'static str,
    },
}

/// Turns a missing key into `None` and leaves every other error.
pub trait Optional<T> {
    /// `Ok(None)` where the key is missing.
    fn optional(self) -> Result<Option<T>, MetadataError>;
}

impl<T> Optional<T> for Result<T, MetadataError> {
    fn optional(self) -> Result<Option<T>, MetadataError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(MetadataError::Missing { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }
}

/// All keys of a file, in order of their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: BTreeMap<String, Value>,
}

impl Metadata {
    /// Adds a key; `false`, with nothing changed, when it is there already.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        use std::collections::btree_map::Entry;
        match self.entries.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(value);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The value as the file states it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// Keys and values in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    fn required(&self, key: &str) -> Result<&Value, MetadataError> {
        self.get(key)
            .ok_or_else(|| MetadataError::Missing { key: shown(key) })
    }

    /// A string.
    pub fn get_str(&self, key: &str) -> Result<&str, MetadataError> {
        match self.required(key)? {
            Value::String(text) => Ok(text),
            other => Err(wrong_type(key, "a string", other)),
        }
    }

    /// A non-negative integer, stored in any integer type.
    pub fn get_u64(&self, key: &str) -> Result<u64, MetadataError> {
        let value = self.required(key)?;
        let integer = value
            .as_integer()
            .ok_or_else(|| wrong_type(key, "an unsigned integer", value))?;
        u64::try_from(integer).map_err(|_| out_of_range(key, &integer, "an unsigned integer"))
    }

    /// A non-negative integer below 2^32, stored in any integer type.
    pub fn get_u32(&self, key: &str) -> Result<u32, MetadataError> {
        let wide = self.get_u64(key)?;
        u32::try_from(wide).map_err(|_| out_of_range(key, &wide, "u32"))
    }

    /// A float, stored as f32 or f64. NaN and infinities are passed on: the caller knows the range.
    pub fn get_f32(&self, key: &str) -> Result<f32, MetadataError> {
        match self.required(key)? {
            Value::F32(value) => Ok(*value),
            Value::F64(value) => Ok(*value as f32),
            other => Err(wrong_type(key, "a float", other)),
        }
    }

    /// A boolean.
    pub fn get_bool(&self, key: &str) -> Result<bool, MetadataError> {
        match self.required(key)? {
            Value::Bool(value) => Ok(*value),
            other => Err(wrong_type(key, "a boolean", other)),
        }
    }

    /// An array of any type.
    pub fn get_array(&self, key: &str) -> Result<&Array, MetadataError> {
        match self.required(key)? {
            Value::Array(array) => Ok(array),
            other => Err(wrong_type(key, "an array", other)),
        }
    }

    /// An array of strings.
    pub fn get_strings(&self, key: &str) -> Result<&[String], MetadataError> {
        match self.get_array(key)? {
            Array::String(items) => Ok(items),
            other => Err(wrong_array(key, "an array of strings", other)),
        }
    }

    /// An array of f32.
    pub fn get_f32s(&self, key: &str) -> Result<&[f32], MetadataError> {
        match self.get_array(key)? {
            Array::F32(items) => Ok(items),
            other => Err(wrong_array(key, "an array of f32", other)),
        }
    }

    /// An array of u32, or of i32 with no negative element.
    pub fn get_u32s(&self, key: &str) -> Result<Cow<'_, [u32]>, MetadataError> {
        match self.get_array(key)? {
            Array::U32(items) => Ok(Cow::Borrowed(items)),
            Array::I32(items) => converted(key, items, "u32"),
            other => Err(wrong_array(key, "an array of u32", other)),
        }
    }

    /// An array of i32, or of u32 with no element past its range.
    pub fn get_i32s(&self, key: &str) -> Result<Cow<'_, [i32]>, MetadataError> {
        match self.get_array(key)? {
            Array::I32(items) => Ok(Cow::Borrowed(items)),
            Array::U32(items) => converted(key, items, "i32"),
            other => Err(wrong_array(key, "an array of i32", other)),
        }
    }
}

fn converted<'a, From, To>(
    key: &str,
    items: &[From],
    expected: &'static str,
) -> Result<Cow<'a, [To]>, MetadataError>
where
    From: Copy + ToString,
    To: TryFrom<From> + Clone,
{
    let convert = |&item: &From| To::try_from(item).map_err(|_| out_of_range(key, &item, expected));
    items
        .iter()
        .map(convert)
        .collect::<Result<Vec<To>, _>>()
        .map(Cow::Owned)
}

fn wrong_type(key: &str, expected: &'static str, found: &Value) -> MetadataError {
    MetadataError::WrongType {
        key: shown(key),
        expected,
        found: found.type_name(),
    }
}

fn wrong_array(key: &str, expected: &'static str, found: &Array) -> MetadataError {
    MetadataError::WrongType {
        key: shown(key),
        expected,
        found: found.type_name(),
    }
}

fn out_of_range(key: &str, value: &impl ToString, expected: &'static str) -> MetadataError {
    MetadataError::OutOfRange {
        key: shown(key),
        value: value.to_string(),
        expected,
    }
}
