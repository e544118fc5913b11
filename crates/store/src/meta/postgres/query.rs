//! Statements and rows, without a connection. Bytes and texts are told apart here: what the server
//! may see, and what is sealed (`sealing.rs`).

use std::fmt;

use tokio_postgres::Error as SqlError;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::{FromSql, FromSqlOwned, ToSql, Type};

use super::sealing::{Param, Private, Public, Seals, Subject, Visible};
use crate::meta::fault::Outcome;

/// A statement and its parameters.
pub(super) struct Query {
    /// The text, with `@` in place of the schema's name.
    pub sql: &'static str,
    pub params: Vec<Param>,
}

impl Query {
    /// A statement without parameters.
    pub fn new(sql: &'static str) -> Self {
        Self { sql, params: Vec::new() }
    }

    fn add(mut self, param: Param) -> Self {
        self.params.push(param);
        self
    }

    /// Adds `$n`, which the server may see.
    pub fn with(self, value: impl Visible + ToSql + Sync + Send + 'static, kind: Type) -> Self {
        self.add(Param::Visible(Box::new(value), kind))
    }

    /// Adds `$n`, a bigint.
    pub fn int(self, value: i64) -> Self {
        self.with(value, Type::INT8)
    }

    /// Adds `$n`, an array of bigint.
    pub fn ints(self, values: Vec<i64>) -> Self {
        self.with(values, Type::INT8_ARRAY)
    }

    /// Adds `$n`, a text that the server may see.
    pub fn public(self, value: &str) -> Self {
        self.with(Public(value.to_owned()), Type::TEXT)
    }

    /// Adds `$n`, bytes.
    pub fn bytes(self, subject: Subject, value: Vec<u8>) -> Self {
        self.maybe_bytes(subject, Some(value))
    }

    /// Adds `$n`, bytes or NULL.
    pub fn maybe_bytes(self, subject: Subject, value: Option<Vec<u8>>) -> Self {
        self.maybe_private(value.map(|value| Private::new(subject, value)))
    }

    /// The same.
    pub fn maybe_private(self, value: Option<Private<Vec<u8>>>) -> Self {
        self.add(Param::Bytes(value))
    }

    /// Adds `$n`, an array of bytes.
    pub fn each_bytes(self, values: Vec<Private<Vec<u8>>>) -> Self {
        self.each_maybe_bytes(values.into_iter().map(Some).collect())
    }

    /// Adds `$n`, an array of bytes and NULLs.
    pub fn each_maybe_bytes(self, values: Vec<Option<Private<Vec<u8>>>>) -> Self {
        self.add(Param::EachBytes(values))
    }

    /// Adds `$n`, a text.
    pub fn text(self, subject: Subject, value: &str) -> Self {
        self.add(Param::Text(Some(Private::new(subject, value.to_owned()))))
    }

    /// Adds `$n`, an array of texts and NULLs.
    pub fn each_maybe_text(self, values: Vec<Option<Private<String>>>) -> Self {
        self.add(Param::EachText(values))
    }

    /// Adds `$n`, an array of texts that is written and read as a whole.
    pub fn list(self, subject: Subject, values: &[String]) -> Self {
        self.add(Param::List(subject, values.to_vec()))
    }

    /// Adds `$n`, a bigint: how much longer a value is in the database than by itself.
    pub fn excess(self) -> Self {
        self.add(Param::Excess(0))
    }
}

/// A row that was read.
pub(super) struct Row {
    row: tokio_postgres::Row,
    seals: Seals,
}

impl Row {
    /// A row of a connection of the engine that has these.
    pub fn new(row: tokio_postgres::Row, seals: &Seals) -> Self {
        Self { row, seals: seals.clone() }
    }

    /// For checksums.
    pub fn seals(&self) -> &Seals {
        &self.seals
    }

    /// A number.
    pub fn try_get<I, T>(&self, column: I) -> Result<T, SqlError>
    where
        I: RowIndex + fmt::Display,
        T: Visible + FromSqlOwned,
    {
        self.row.try_get(column)
    }

    /// Bytes or a text that the server may see.
    pub fn public<'r, T: FromSql<'r>>(&'r self, column: usize) -> Result<T, SqlError> {
        self.row.try_get(column)
    }

    /// Bytes.
    pub fn bytes(&self, column: usize, subject: &Subject) -> Outcome<Vec<u8>> {
        self.seals.bytes(subject, self.row.try_get(column)?)
    }

    /// Bytes or NULL.
    pub fn maybe_bytes(&self, column: usize, subject: &Subject) -> Outcome<Option<Vec<u8>>> {
        let stored: Option<Vec<u8>> = self.row.try_get(column)?;
        stored.map(|stored| self.seals.bytes(subject, stored)).transpose()
    }

    /// A text.
    pub fn text(&self, column: usize, subject: &Subject) -> Outcome<String> {
        self.seals.text(subject, self.row.try_get(column)?)
    }

    /// A text or NULL.
    pub fn maybe_text(&self, column: usize, subject: &Subject) -> Outcome<Option<String>> {
        let stored: Option<String> = self.row.try_get(column)?;
        stored.map(|stored| self.seals.text(subject, stored)).transpose()
    }

    /// What [`Query::list`] has written.
    pub fn list(&self, column: usize, subject: &Subject) -> Outcome<Vec<String>> {
        self.seals.list(subject, self.row.try_get(column)?)
    }
}

/// The result of a statement.
pub(super) struct Answer {
    pub rows: Vec<Row>,
    /// Rows that it changed (or returned).
    pub affected: u64,
}

impl Answer {
    /// The first row.
    pub fn first(&self) -> Option<&Row> {
        self.rows.first()
    }
}
