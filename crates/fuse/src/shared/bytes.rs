//! The bytes of open files: written to the log, cut, read from the log and the store.

use std::sync::Arc;

use outrigger_format::catalogue::Time;
use outrigger_format::staging::Operation;
use outrigger_store::ErrorKind;
use outrigger_store::staging::Piece;
use rustix::io::Errno;

use super::core::{Core, OpenFile};
use super::file::{File, State};
use crate::fs::{Result, Seek};
use crate::live::file::{LEN_MAX, WRITE_MAX};
use crate::tail::Prefix;

impl Core {
    /// Something was written to a file, whose state is held.
    pub(super) fn wrote(state: &mut State, time: Time, appended: bool) {
        state.only_appended = appended;
        state.written = Some(time);
    }

    /// Says what was done to a file, whose state is held.
    pub(super) fn tell(&self, state: &mut State, tell: impl Fn(&mut Prefix)) {
        if let Some(increments) = &mut state.increments {
            tell(&mut increments.prefix);
        }
        self.tailing.tell(state.open.as_deref_mut(), tell);
    }

    pub(super) fn write_file(
        self: &Arc<Self>,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        drops: bool,
    ) -> Result<()> {
        if !open.writes {
            return Err(Errno::BADF);
        }
        self.require_session()?;
        let mut at = offset;
        for part in data.chunks(WRITE_MAX) {
            let _room = self.room(part.len())?;
            let mut state = open.file.write();
            open.require_sound()?;
            if open.appends {
                at = state.map.len();
            }
            if at.checked_add(part.len() as u64).is_none_or(|end| end > LEN_MAX) {
                return Err(Errno::FBIG);
            }
            let appended = self.append(&Operation::Write { inode: open.file.number, offset: at }, part)?;
            state.begin_increments(at);
            let follows = open.appends && (state.map.is_clean() || state.only_appended);
            state.map.write(at, &appended);
            Self::wrote(&mut state, appended.time, follows);
            state.drops_rights |= drops;
            let end = at + part.len() as u64;
            self.tell(&mut state, |prefix| prefix.wrote(at..end));
            self.enqueue_increment(&open.file, state);
            at = end;
        }
        Ok(())
    }

    /// Sets a file's length, by an open file of it or otherwise.
    pub(super) fn truncate(
        self: &Arc<Self>,
        file: &File,
        len: u64,
        drops: bool,
        by: Option<&OpenFile>,
    ) -> Result<()> {
        if len > LEN_MAX {
            return Err(Errno::FBIG);
        }
        self.require_session()?;
        let _room = self.room(0)?;
        let mut state = file.write();
        by.map_or(Ok(()), OpenFile::require_sound)?;
        self.truncate_in(file.number, &mut state, len, drops)
    }

    /// As [`Core::truncate`], of a file whose state is held, with room in the log.
    pub(super) fn truncate_in(&self, inode: u64, state: &mut State, len: u64, drops: bool) -> Result<()> {
        let appended = self.append(&Operation::Truncate { inode, len }, &[])?;
        state.map.truncate(len, &appended);
        self.tell(state, |prefix| prefix.cut(len));
        Self::wrote(state, appended.time, false);
        state.drops_rights |= drops;
        Ok(())
    }

    pub(super) fn read_file(&self, file: &File, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        let read = self.read_now(file, offset, len, out);
        let Err(error) = read else { return Ok(()) };
        let to_errno = |error| self.reports.errno_at(error, format_args!("inode {}", file.number));
        if !matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound) {
            return Err(to_errno(error));
        }
        // Another host may have stored another content, and a collector taken this one.
        let before = file.read().row.root.clone();
        let now = self.row(file.number)?.root;
        if file.read().is_given_up() {
            // Another host has removed it, or the session that had pinned it was ended, and it was
            // reclaimed since.
            return Err(Errno::STALE);
        }
        if now == before {
            return Err(to_errno(error));
        }
        out.truncate(begin);
        self.read_now(file, offset, len, out).map_err(to_errno)
    }

    fn read_now(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> outrigger_store::Result<()> {
        let state = file.read();
        let stored = Arc::clone(&state.stored);
        if state.map.is_clean() {
            drop(state);
            return stored.read(&self.reader(), &self.ahead, offset, len, out);
        }
        let end = offset.saturating_add(len as u64);
        for (range, piece) in state.map.pieces(offset..end) {
            let len = (range.end - range.start) as usize;
            let at = out.len();
            match piece {
                Piece::Data(location) => {
                    out.resize(at + len, 0);
                    self.log.read(location, &mut out[at..])?;
                }
                Piece::Committed => stored.read(&self.reader(), &self.ahead, range.start, len, out)?,
                // Nothing is shared with other files here.
                Piece::Zero | Piece::Clone(..) => out.resize(at + len, 0),
            }
        }
        Ok(())
    }

    pub(super) fn seek_in(&self, file: &File, offset: u64, to: Seek) -> Result<u64> {
        let state = file.read();
        let len = state.map.len();
        if offset >= len {
            return Err(Errno::NXIO);
        }
        for (range, piece) in state.map.pieces(offset..len) {
            let found = match (piece, to) {
                (Piece::Zero, Seek::Hole) | (Piece::Data(_) | Piece::Clone(..), Seek::Data) => {
                    Some(range.start)
                }
                (Piece::Committed, _) => {
                    let found = state.stored.seek(&self.reader(), range.start, to);
                    self.fail(found)?.filter(|at| *at < range.end)
                }
                _ => None,
            };
            if let Some(at) = found {
                return Ok(at.max(offset));
            }
        }
        if to == Seek::Hole { Ok(len) } else { Err(Errno::NXIO) }
    }
}
