//! Reading one call, `{"name": .., "arguments": ..}`, character by character as it is written.

/// What became of the characters so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// More must come.
    More,
    /// The object is complete with this character.
    Complete,
    /// This is no call.
    Broken,
}

/// News of a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Its name, once.
    pub(super) name: Option<String>,
    /// More of the arguments' JSON text; only after the name.
    pub(super) arguments: String,
}

/// Keys under which models put arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Longest name or key; more is no call.
const MAX_NAME_BYTES: usize = 256;

#[derive(Debug, PartialEq, Eq)]
enum Place {
    BeforeObject,
    BeforeKey,
    Key,
    BeforeColon,
    BeforeValue,
    Name,
    Arguments,
    /// Arguments as a JSON string of JSON, as some models write them.
    QuotedArguments,
    Other,
    AfterValue,
}

/// The reader. Feed it until it is complete or broken.
#[derive(Debug)]
pub(super) struct CallScanner {
    place: Place,
    /// The text of the string under way, with its quotes.
    string: String,
    key: String,
    value: ValueScanner,
    name: Option<String>,
    /// Arguments that wait for the name.
    waiting: String,
    has_arguments: bool,
}

impl CallScanner {
    pub(super) fn new() -> Self {
        Self {
            place: Place::BeforeObject,
            string: String::new(),
            key: String::new(),
            value: ValueScanner::default(),
            name: None,
            waiting: String::new(),
            has_arguments: false,
        }
    }

    /// Whether the name is known, so that the call was announced.
    pub(super) fn is_announced(&self) -> bool {
        self.name.is_some()
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char, found: &mut Found) -> Scan {
        let scan = self.step(c, found);
        if scan == Scan::Complete && self.name.is_none() {
            return Scan::Broken;
        }
        if scan == Scan::Complete && !self.has_arguments {
            found.arguments.push_str("{}");
        }
        scan
    }

    fn step(&mut self, c: char, found: &mut Found) -> Scan {
        match self.place {
            Place::BeforeObject => self.expect(c, '{', Place::BeforeKey),
            Place::BeforeKey | Place::AfterValue if c == '}' => Scan::Complete,
            Place::BeforeKey => {
                self.string.clear();
                self.string.push('"');
                self.value = ValueScanner::default();
                self.expect(c, '"', Place::Key)
            }
            Place::Key => match self.end_of_string(c) {
                Some(Ok(key)) => {
                    self.key = key;
                    self.place = Place::BeforeColon;
                    Scan::More
                }
                Some(Err(())) => Scan::Broken,
                None => Scan::More,
            },
            Place::BeforeColon => self.expect(c, ':', Place::BeforeValue),
            Place::BeforeValue if c.is_ascii_whitespace() => Scan::More,
            Place::BeforeValue => self.begin_value(c, found),
            Place::Name => match self.end_of_string(c) {
                Some(Ok(name)) if !name.is_empty() => {
                    self.announce(name, found);
                    Scan::More
                }
                Some(_) => Scan::Broken,
                None => Scan::More,
            },
            Place::Arguments | Place::Other => self.more_of_value(c, found),
            Place::QuotedArguments => self.more_of_quoted(c, found),
            Place::AfterValue => self.expect(c, ',', Place::BeforeKey),
        }
    }

    fn expect(&mut self, c: char, wanted: char, next: Place) -> Scan {
        if c == wanted {
            self.place = next;
            Scan::More
        } else if c.is_ascii_whitespace() {
            Scan::More
        } else {
            Scan::Broken
        }
    }

    /// The string under way, decoded, when `c` ends it.
    fn end_of_string(&mut self, c: char) -> Option<Result<String, ()>> {
        self.string.push(c);
        if self.string.len() > MAX_NAME_BYTES {
            return Some(Err(()));
        }
        if self.value.push_string(c) == ValueEnd::Not {
            return None;
        }
        Some(serde_json::from_str(&self.string).map_err(|_| ()))
    }

    fn begin_value(&mut self, c: char, found: &mut Found) -> Scan {
        let is_arguments = ARGUMENTS.contains(&self.key.as_str()) && !self.has_arguments;
        self.value = ValueScanner::default();
        self.string.clear();
        match (self.key.as_str(), c) {
            ("name", '"') if self.name.is_none() => {
                self.string.push('"');
                self.place = Place::Name;
                Scan::More
            }
            ("name", _) => Scan::Broken,
            (_, '"') if is_arguments => {
                self.string.push('"');
                self.place = Place::QuotedArguments;
                Scan::More
            }
            (_, '{') if is_arguments => {
                self.has_arguments = true;
                self.place = Place::Arguments;
                self.more_of_value(c, found)
            }
            (_, _) if is_arguments => Scan::Broken,
            _ => {
                self.place = Place::Other;
                self.more_of_value(c, found)
            }
        }
    }

    fn announce(&mut self, name: String, found: &mut Found) {
        found.name = Some(name.clone());
        found.arguments.push_str(&std::mem::take(&mut self.waiting));
        self.name = Some(name);
        self.place = Place::AfterValue;
    }

    fn more_of_value(&mut self, c: char, found: &mut Found) -> Scan {
        let end = self.value.push(c);
        if self.place == Place::Arguments && end != ValueEnd::Before {
            self.emit(c, found);
        }
        match end {
            ValueEnd::Not => Scan::More,
            ValueEnd::With => {
                self.place = Place::AfterValue;
                Scan::More
            }
            ValueEnd::Before => {
                self.place = Place::AfterValue;
                self.step(c, found)
            }
        }
    }

    fn more_of_quoted(&mut self, c: char, found: &mut Found) -> Scan {
        self.string.push(c);
        let decoded = match self.value.push_string(c) {
            ValueEnd::Not => return Scan::More,
            _ => serde_json::from_str::<String>(&self.string),
        };
        let Ok(text) = decoded else {
            return Scan::Broken;
        };
        self.has_arguments = true;
        self.place = Place::AfterValue;
        text.chars().for_each(|c| self.emit(c, found));
        Scan::More
    }

    fn emit(&mut self, c: char, found: &mut Found) {
        if self.name.is_some() {
            found.arguments.push(c);
        } else {
            self.waiting.push(c);
        }
    }
}

/// Finds the end of a JSON value without keeping it.
#[derive(Debug, Default)]
struct ValueScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// Whether a value ended.
#[derive(Debug, PartialEq, Eq)]
enum ValueEnd {
    Not,
    /// This character is its last.
    With,
    /// It ended before this character.
    Before,
}

impl ValueScanner {
    fn push(&mut self, c: char) -> ValueEnd {
        if self.in_string {
            let end = self.push_string(c);
            self.in_string = end == ValueEnd::Not;
            return if self.depth == 0 { end } else { ValueEnd::Not };
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' | ',' if self.depth == 0 => return ValueEnd::Before,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return ValueEnd::With;
                }
            }
            _ => {}
        }
        ValueEnd::Not
    }

    /// Within a string: whether `c` closes it.
    fn push_string(&mut self, c: char) -> ValueEnd {
        match (self.escaped, c) {
            (true, _) => self.escaped = false,
            (false, '\\') => self.escaped = true,
            (false, '"') => return ValueEnd::With,
            (false, _) => {}
        }
        ValueEnd::Not
    }
}
