//! Rows of tables that are copied, between SQLite's values and PostgreSQL's columns: their
//! checksums, and what is sealed in them.

use rusqlite::types::Value;
use tokio_postgres::types::Type;

use super::super::connection::{Query, Row};
use super::super::row::require;
use super::super::sealing::{Private, Public, Seals, Subject, Sum};
use crate::meta::carry::{Kind, Table, misplaced};
use crate::meta::fault::Outcome;

/// Rows of one statement, and about how many bytes of them.
const BATCH_ROWS: usize = 5_000;
const BATCH_BYTES: usize = 4 << 20;

/// The checksum of a row.
fn sum(seals: &Seals, table: &Table, values: &[Value]) -> i32 {
    add(Sum::new(seals, table.name), table, table.summed, values).end()
}

/// True for a former row that the server has compared with the present one, and that has that one's
/// checksum: columns `WAS` of the row, from `at` on.
fn is_as_it_was(row: &Row, at: usize, table: &Table, values: &[Value]) -> Outcome<bool> {
    let Some(was) = row.try_get::<_, Option<i32>>(at)? else { return Ok(false) };
    let sum = match table.name {
        "inode_old" => {
            let sum = add(Sum::new(row.seals(), "inode"), table, &["number", "epoch_from"], values);
            let sum = sum.int(row.try_get(at + 1)?).int(row.try_get(at + 2)?);
            // Behind number and epochs.
            add(sum, table, &table.summed[3..], values)
        }
        _ => {
            let columns = ["parent", "name", "inode", "epoch_from"];
            add(Sum::new(row.seals(), "dentry"), table, &columns, values)
        }
    };
    Ok(sum.end() == was)
}

/// The columns that only PostgreSQL has, read behind the checksum.
pub(super) fn was(table: &Table) -> &'static str {
    match table.name {
        "inode_old" => ", was_sum, was_version, was_time",
        "dentry_old" => ", was_sum",
        _ => "",
    }
}

fn add(mut sum: Sum, table: &Table, columns: &[&str], values: &[Value]) -> Sum {
    for column in columns {
        let at = table.position(column).unwrap_or(usize::MAX);
        let is_number = !matches!(table.columns.get(at), Some((_, Kind::Bytes | Kind::Text)));
        sum = match values.get(at) {
            Some(Value::Integer(value)) => sum.int(*value),
            Some(Value::Blob(bytes)) => sum.bytes(Some(bytes)),
            Some(Value::Text(text)) => sum.text(text),
            // The number of an inode that is no device.
            _ if is_number => sum.int(-1),
            _ => sum.bytes(None),
        };
    }
    sum
}

/// The columns of bytes and texts that are not sealed.
const PUBLIC: &[(&str, &str)] = &[
    ("inode", "times"),
    ("inode_old", "times"),
    ("policy", "key"),
    ("policy", "value"),
    ("held", "holder"),
    ("record", "kind"),
    ("inline_chunk", "codec"),
];

/// What a value of a column is, in a row that has these values, of earlier columns at least; `None`
/// for what is not sealed.
fn subject(table: &Table, column: &str, values: &[Value]) -> Outcome<Option<Subject>> {
    let at = |name: &str| table.position(name).unwrap_or(usize::MAX);
    let number = |name| match values.get(at(name)) {
        Some(Value::Integer(number)) => Ok(*number),
        _ => Err(misplaced(table, at(name))),
    };
    let text = |name| match values.get(at(name)) {
        Some(Value::Text(text)) => Ok(text.as_str()),
        _ => Err(misplaced(table, at(name))),
    };
    Ok(Some(match (table.name, column) {
        ("inode" | "inode_old", "target") => Subject::Target { inode: number("number")? },
        ("inode" | "inode_old", "xattrs") => Subject::Xattrs { inode: number("number")? },
        ("inode" | "inode_old", "root") => Subject::Root { inode: number("number")? },
        ("dentry" | "dentry_old", "name") => Subject::Name { parent: number("parent")? },
        ("version", "root") => Subject::VersionRoot { inode: number("inode")?, number: number("number")? },
        ("held", "root") => Subject::held(text("holder")?),
        ("job", "spec") => Subject::JobSpec,
        ("job", "why") => Subject::JobWhy { job: number("id")? },
        ("job", "made") => Subject::JobMade { job: number("id")? },
        ("job_input", "path") => Subject::InputPath { job: number("job")?, number: number("number")? },
        ("job_input", "root") => Subject::InputRoot { job: number("job")?, number: number("number")? },
        ("job_split", "why") => Subject::SplitWhy { job: number("job")? },
        ("job_split", "log") => Subject::SplitLog { job: number("job")?, split: number("number")? },
        ("job_split", "measured") => Subject::SplitMeasured { job: number("job")?, split: number("number")? },
        ("job_output", "name") => {
            let (job, split, attempt) = (number("job")?, number("split")?, number("attempt")?);
            Subject::OutputName { job, split, attempt }
        }
        ("job_output", "root") => {
            let (job, split, attempt) = (number("job")?, number("split")?, number("attempt")?);
            Subject::OutputRoot { job, split, attempt }
        }
        ("record", "name") => Subject::record_name(text("kind")?),
        ("record", "value") => Subject::record(text("kind")?, text("name")?),
        ("rule_mark", "rule") => Subject::RuleName,
        ("rule_mark", "mark") => Subject::mark(text("rule")?, number("inode")? as u64),
        ("inline_chunk", "fingerprint") => Subject::Fingerprint,
        ("inline_chunk", "bytes") => match values.get(at("fingerprint")) {
            Some(Value::Blob(name)) => {
                let name = name.as_slice().try_into();
                Subject::inline(name.map_err(|_| misplaced(table, at("fingerprint")))?)
            }
            _ => return Err(misplaced(table, at("fingerprint"))),
        },
        _ => return Ok(None),
    }))
}

/// The values of a row of `Statements::read`.
pub(super) fn values(table: &Table, row: &Row) -> Outcome<Vec<Value>> {
    let mut values = Vec::with_capacity(table.columns.len());
    for (at, (column, kind)) in table.columns.iter().enumerate() {
        let subject = subject(table, column, &values)?;
        let value = match kind {
            Kind::Big => row.try_get::<_, Option<i64>>(at)?.map(Value::Integer),
            Kind::Small => row.try_get::<_, Option<i32>>(at)?.map(|value| Value::Integer(value.into())),
            Kind::Bits => {
                let bits = row.try_get::<_, Option<i32>>(at)?;
                bits.map(|value| Value::Integer(value.cast_unsigned().into()))
            }
            Kind::Bytes => match subject {
                Some(subject) => row.maybe_bytes(at, &subject)?.map(Value::Blob),
                None => row.public::<Option<_>>(at)?.map(Value::Blob),
            },
            Kind::Text => match subject {
                Some(subject) => row.maybe_text(at, &subject)?.map(Value::Text),
                None => row.public::<Option<_>>(at)?.map(Value::Text),
            },
        };
        values.push(value.unwrap_or(Value::Null));
    }
    if !table.summed.is_empty() {
        let kept = row.try_get(table.columns.len())?;
        let what = || {
            let key = table.key.iter().filter_map(|column| values.get(table.position(column)?));
            let key: Vec<String> = key.map(shown).collect();
            format!("a row of table {} ({}) is not what was written", table.name, key.join(", "))
        };
        let at = table.columns.len() + 1;
        if was(table).is_empty() || !is_as_it_was(row, at, table, &values)? {
            require(kept, sum(row.seals(), table, &values), what)?;
        }
    }
    Ok(values)
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => format!("`{text}`"),
        Value::Blob(bytes) => format!("`{}`", crate::text::show(bytes)),
    }
}

/// Values of one column, for a statement over arrays.
enum Column {
    Big(Vec<Option<i64>>),
    Small(Vec<Option<i32>>),
    Bytes(Vec<Option<Private<Vec<u8>>>>),
    Text(Vec<Option<Private<String>>>),
    PublicBytes(Vec<Option<Public<Vec<u8>>>>),
    PublicText(Vec<Option<Public<String>>>),
}

/// Rows for a statement over arrays.
pub(super) struct Batch {
    seals: Seals,
    columns: Vec<Column>,
    rows: usize,
    bytes: usize,
}

impl Batch {
    pub fn new(seals: &Seals, table: &Table) -> Self {
        let column = |(name, kind): &(&str, Kind)| match (kind, PUBLIC.contains(&(table.name, name))) {
            (Kind::Big, _) => Column::Big(Vec::new()),
            (Kind::Small | Kind::Bits, _) => Column::Small(Vec::new()),
            (Kind::Bytes, false) => Column::Bytes(Vec::new()),
            (Kind::Text, false) => Column::Text(Vec::new()),
            (Kind::Bytes, true) => Column::PublicBytes(Vec::new()),
            (Kind::Text, true) => Column::PublicText(Vec::new()),
        };
        let mut columns: Vec<Column> = table.columns.iter().map(column).collect();
        if !table.summed.is_empty() {
            columns.push(Column::Small(Vec::new()));
        }
        Self { seals: seals.clone(), columns, rows: 0, bytes: 0 }
    }

    pub fn push(&mut self, table: &Table, mut values: Vec<Value>) -> Outcome<()> {
        if !table.summed.is_empty() {
            values.push(Value::Integer(sum(&self.seals, table, &values).into()));
        }
        let subject = |(column, _): &(&str, Kind)| subject(table, column, &values);
        let mut subjects = table.columns.iter().map(subject).collect::<Outcome<Vec<_>>>()?;
        subjects.push(None);
        let values = values.into_iter().zip(subjects);
        for (at, (column, (value, subject))) in self.columns.iter_mut().zip(values).enumerate() {
            self.bytes += 16;
            match (column, value) {
                (Column::Big(column), Value::Integer(value)) => column.push(Some(value)),
                (Column::Big(column), Value::Null) => column.push(None),
                // The bits of a u32, too.
                (Column::Small(column), Value::Integer(value))
                    if (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&value) =>
                {
                    column.push(Some(value as i32));
                }
                (Column::Small(column), Value::Null) => column.push(None),
                (Column::Bytes(column), Value::Blob(bytes)) => {
                    self.bytes += bytes.len();
                    let subject = subject.ok_or_else(|| misplaced(table, at))?;
                    column.push(Some(Private::new(subject, bytes)));
                }
                (Column::Bytes(column), Value::Null) => column.push(None),
                (Column::Text(column), Value::Text(text)) => {
                    self.bytes += text.len();
                    let subject = subject.ok_or_else(|| misplaced(table, at))?;
                    column.push(Some(Private::new(subject, text)));
                }
                (Column::Text(column), Value::Null) => column.push(None),
                (Column::PublicBytes(column), Value::Blob(bytes)) => column.push(Some(Public(bytes))),
                (Column::PublicBytes(column), Value::Null) => column.push(None),
                (Column::PublicText(column), Value::Text(text)) => column.push(Some(Public(text))),
                (Column::PublicText(column), Value::Null) => column.push(None),
                _ => return Err(misplaced(table, at)),
            }
        }
        self.rows += 1;
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub fn is_full(&self) -> bool {
        self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    pub fn into_query(self, sql: &'static str) -> Query {
        self.columns.into_iter().fold(Query::new(sql), |query, column| match column {
            Column::Big(values) => query.with(values, Type::INT8_ARRAY),
            Column::Small(values) => query.with(values, Type::INT4_ARRAY),
            Column::Bytes(values) => query.each_maybe_bytes(values),
            Column::Text(values) => query.each_maybe_text(values),
            Column::PublicBytes(values) => query.with(values, Type::BYTEA_ARRAY),
            Column::PublicText(values) => query.with(values, Type::TEXT_ARRAY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::carry::TABLES;
    use crate::meta::change::row::{Content, Special};
    use crate::meta::postgres::row::{
        Stored, Traits, directory_sum, former_name_sum, former_sum, held_sum, inode_sum, input_sum, name_sum,
        output_sum, version_sum,
    };
    use outrigger_format::catalogue::Time;

    fn table(name: &str) -> &'static Table {
        TABLES.iter().find(|table| table.name == name).unwrap()
    }

    fn ints<const N: usize>(numbers: [i64; N]) -> Vec<Value> {
        numbers.into_iter().map(Value::Integer).collect()
    }

    fn blob(bytes: &[u8]) -> Value {
        Value::Blob(bytes.to_vec())
    }

    #[test]
    fn every_value_is_sealed_but_those_that_are_public() {
        for table in TABLES {
            let some = |(_, kind): &(&str, Kind)| match kind {
                Kind::Bytes => blob(&[7; 32]),
                Kind::Text => Value::Text("text".into()),
                _ => Value::Integer(7),
            };
            let row: Vec<Value> = table.columns.iter().map(some).collect();
            for (column, kind) in table.columns {
                let is_number = !matches!(kind, Kind::Bytes | Kind::Text);
                let is_public = PUBLIC.contains(&(table.name, column));
                let subject = subject(table, column, &row).unwrap();
                assert_eq!(subject.is_none(), is_number || is_public, "{}.{column}", table.name);
            }
        }
    }

    #[test]
    fn checksums_are_those_of_the_engine() {
        let sealer = crate::meta::Sealer::new(&crate::keys::Key::new([1; 32]));
        [None, Some(sealer)].map(Seals::new).iter().for_each(compare_checksums);
    }

    fn compare_checksums(seals: &Seals) {
        for (special, device, target) in [
            (Special::None, Value::Null, Value::Null),
            (Special::Device(7), Value::Integer(7), Value::Null),
            (Special::Target(b"t".to_vec()), Value::Null, blob(b"t")),
        ] {
            let inode = Stored {
                number: 1,
                epoch: 2,
                links: 3,
                version: 4,
                time: 5,
                stamp: 6,
                mode: 7,
                content: Content {
                    traits: Traits { mode: 7, uid: 4_000_000_000, gid: 9, xattrs: Some(b"x".to_vec()) },
                    mtime: Time { secs: 10, nanos: 11 },
                    special,
                    root: None,
                    times: Some(b"u".to_vec()),
                },
            };
            let rest = [device, target, blob(b"x"), Value::Null, blob(b"u")];
            let row = [ints([1, 2, 4, 10, 5, 6, 11, 7, 4_000_000_000, 9, 3]), rest.to_vec()].concat();
            assert_eq!(sum(seals, table("inode"), &row), inode_sum(seals, &inode));
            let row = [ints([1, 2, 8, 10, 6, 11, 7, 4_000_000_000, 9, 3]), rest.to_vec()].concat();
            assert_eq!(sum(seals, table("inode_old"), &row), former_sum(seals, &inode, 8));
        }
        let row = [ints([1]), vec![blob(b"name")], ints([2, 3])].concat();
        assert_eq!(sum(seals, table("dentry"), &row), name_sum(seals, 1, b"name", 2, 3));
        let row = [ints([1]), vec![blob(b"name")], ints([3, 4, 2])].concat();
        assert_eq!(sum(seals, table("dentry_old"), &row), former_name_sum(seals, 1, b"name", 2, (3, 4)));
        assert_eq!(sum(seals, table("directory"), &ints([1, 2])), directory_sum(seals, 1, 2));
        let row = [ints([1, 2, 3, 4, 5]), vec![Value::Null]].concat();
        assert_eq!(
            sum(seals, table("version"), &row),
            version_sum(seals, [1, 2], 3, Time { secs: 4, nanos: 5 }, None)
        );
        let row = vec![Value::Text("who".into()), blob(b"root")];
        assert_eq!(sum(seals, table("held"), &row), held_sum(seals, "who", b"root"));
        let row = [ints([1, 2]), vec![blob(b"path"), blob(b"root")]].concat();
        assert_eq!(sum(seals, table("job_input"), &row), input_sum(seals, 1, 2, b"path", Some(b"root")));
        let row = [ints([1, 2, 3]), vec![blob(b"name"), Value::Null]].concat();
        assert_eq!(sum(seals, table("job_output"), &row), output_sum(seals, [1, 2, 3], b"name", None));
    }
}
