//! Content: reading what is committed and what is staged over it; writing, cutting, zeroing,
//! copying.

use std::sync::Arc;

use outrigger_format::catalogue::FileKind;
use outrigger_format::staging::Operation;
use outrigger_store::ErrorKind;
use outrigger_store::staging::{Log, Piece};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::attributes::drop_privileges;
use super::core::{Core, OpenFile};
use super::names::require_key;
use super::node::{Node, State};
use crate::fs::{Caller, Result, Seek};

/// The longest file, as the manifest has it.
pub(crate) const LEN_MAX: u64 = i64::MAX as u64;
/// Bytes of a record at most, well below the shortest segment: a longer write becomes several.
pub(crate) const WRITE_MAX: usize = 1 << 20;
/// Copies of less than this are copies of bytes: sharing them would cost more.
const CLONE_MIN: u64 = 256 << 10;

impl Core {
    /// Appends the bytes `offset..offset + len` of a file to `out`, as far as it has them.
    pub fn read_file(&self, node: &Node, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        let mut state = node.read();
        if state.file.map.is_clean() {
            // Committed content does not change under a reader, and is read without the lock. But a
            // collector may take it once something else is committed. Then the new content is read.
            let stored = Arc::clone(&state.file.stored);
            drop(state);
            let read = stored.read(&self.reader(), &self.ahead, offset, len, out);
            let Err(error) = read else { return Ok(()) };
            out.truncate(begin);
            state = node.read();
            let same = state.file.map.is_clean() && Arc::ptr_eq(&stored, &state.file.stored);
            if same || !matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotFound) {
                return Err(self.world.reports.errno_at(error, format_args!("inode {}", node.number)));
            }
        }
        let done = self.read_pieces(&state, offset, len, out);
        done.map_err(|error| self.world.reports.errno_at(error, format_args!("inode {}", node.number)))
    }

    /// As [`Core::read_file`], with the node locked.
    fn read_pieces(
        &self,
        state: &State,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> outrigger_store::Result<()> {
        let end = offset.saturating_add(len as u64);
        for (range, piece) in state.file.map.pieces(offset..end) {
            let len = (range.end - range.start) as usize;
            match piece {
                Piece::Data(location) => {
                    let at = out.len();
                    out.resize(at + len, 0);
                    self.log.read(location, &mut out[at..])?;
                }
                Piece::Zero => out.resize(out.len() + len, 0),
                Piece::Committed => {
                    state.file.stored.read(&self.reader(), &self.ahead, range.start, len, out)?;
                }
                Piece::Clone(root, from) => self.reader().read(&root, from, len as u64, &mut |bytes| {
                    out.extend_from_slice(bytes);
                    Ok(())
                })?,
            }
        }
        Ok(())
    }

    /// Writes all of `data`.
    pub fn write_file(&self, file: &OpenFile, offset: u64, data: &[u8], drop_set_id: bool) -> Result<()> {
        if !file.writes {
            return Err(Errno::BADF);
        }
        require_key(&self.world.store, &self.world.reports, &file.node.read().attributes)?;
        let mut at = offset;
        for part in data.chunks(WRITE_MAX) {
            let _room = self.room(part.len())?;
            let _gate = self.enter();
            let mut state = file.node.write();
            if file.appends {
                at = state.file.map.len();
            }
            if at.checked_add(part.len() as u64).is_none_or(|end| end > LEN_MAX) {
                return Err(Errno::FBIG);
            }
            let operation = Operation::Write { inode: file.node.number, offset: at };
            let appended = self.append(&operation, part)?;
            let file_state = &mut state.file;
            file_state.map.write(at, &appended);
            file_state.touched();
            state.modified(appended.time);
            self.tell_readers(&mut state, |prefix| prefix.wrote(at..at + part.len() as u64));
            if drop_set_id && drop_privileges(&mut state.attributes) {
                self.edit(&file.node, &mut state, |_| {})?;
            }
            self.world.mark(&file.node);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Cuts or lengthens a file whose node is locked.
    pub fn truncate_in(&self, node: &Arc<Node>, state: &mut State, len: u64) -> Result<()> {
        if len > LEN_MAX {
            return Err(Errno::FBIG);
        }
        let appended = self.append(&Operation::Truncate { inode: node.number, len }, &[])?;
        state.file.map.truncate(len, &appended);
        state.file.touched();
        state.modified(appended.time);
        self.tell_readers(state, |prefix| prefix.cut(len));
        self.world.mark(node);
        Ok(())
    }

    /// Truncates a file that is being opened with `O_TRUNC`.
    pub fn truncate_opened(&self, node: &Arc<Node>, caller: Caller) -> Result<()> {
        let _room = self.room(0)?;
        let _gate = self.enter();
        let mut state = node.write();
        self.truncate_in(node, &mut state, 0)?;
        if caller.uid != 0 && drop_privileges(&mut state.attributes) {
            self.edit(node, &mut state, |_| {})?;
        }
        Ok(())
    }

    /// Allocates, punches or zeroes.
    pub fn allocate_in_file(
        &self,
        file: &OpenFile,
        caller: Caller,
        offset: u64,
        len: u64,
        mode: FallocateFlags,
    ) -> Result<()> {
        if !file.writes {
            return Err(Errno::BADF);
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|end| *end <= LEN_MAX).ok_or(Errno::FBIG)?;
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        let zeroes = zeroes(mode)?;
        let node = &file.node;
        let _room = self.room(0)?;
        let _gate = self.enter();
        let mut state = node.write();
        let now_len = state.file.map.len();
        let end = if keeps_size { end.min(now_len) } else { end };
        if zeroes && offset < end {
            let operation = Operation::Zero { inode: node.number, offset, len: end - offset };
            let appended = self.append(&operation, &[])?;
            state.file.map.zero(offset, end - offset, &appended);
            state.file.touched();
            state.modified(appended.time);
            self.tell_readers(&mut state, |prefix| prefix.changed(offset));
        } else if end > now_len {
            // Space cannot be reserved for data that may be deduplicated: this only sets the
            // length.
            self.truncate_in(node, &mut state, end)?;
        }
        if caller.uid != 0 && drop_privileges(&mut state.attributes) {
            self.edit(node, &mut state, |_| {})?;
        }
        self.world.mark(node);
        Ok(())
    }

    /// The next data or hole at or after `offset`.
    pub fn seek_in_file(&self, node: &Node, offset: u64, to: Seek) -> Result<u64> {
        let state = node.read();
        let len = state.file.map.len();
        if offset >= len {
            return Err(Errno::NXIO);
        }
        for (range, piece) in state.file.map.pieces(offset..len) {
            let found = match piece {
                Piece::Zero => (to == Seek::Hole).then_some(range.start),
                Piece::Data(_) | Piece::Clone(..) => (to == Seek::Data).then_some(range.start),
                Piece::Committed => {
                    let found = self.world.fail(state.file.stored.seek(&self.reader(), range.start, to))?;
                    found.filter(|at| *at < range.end)
                }
            };
            if let Some(at) = found {
                return Ok(at);
            }
        }
        if to == Seek::Hole { Ok(len) } else { Err(Errno::NXIO) }
    }

    /// Copies a range between two files, or within one, by sharing committed content. Returns how
    /// many bytes.
    pub fn copy_between(
        &self,
        from: &OpenFile,
        from_offset: u64,
        to: &OpenFile,
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        if !to.writes {
            return Err(Errno::BADF);
        }
        if from.node.kind != FileKind::File || to.node.kind != FileKind::File {
            return Err(Errno::INVAL);
        }
        // The kernel reads and writes then.
        if from.node.read().attributes.domain() != to.node.read().attributes.domain() {
            return Err(Errno::XDEV);
        }
        let len = {
            let state = from.node.read();
            len.min(state.file.map.len().saturating_sub(from_offset))
        };
        if offset.checked_add(len).is_none_or(|end| end > LEN_MAX) {
            return Err(Errno::FBIG);
        }
        if from.node.number == to.node.number && from_offset < offset + len && offset < from_offset + len {
            return Err(Errno::INVAL);
        }
        let mut done = 0;
        while done < len {
            done += self.copy_part(&from.node, from_offset + done, to, offset + done, len - done)?;
        }
        Ok(done)
    }

    /// Copies the beginning of a range: the part that is of one kind.
    fn copy_part(&self, from: &Node, from_offset: u64, to: &OpenFile, offset: u64, len: u64) -> Result<u64> {
        let piece = {
            let state = from.read();
            let mut pieces = state.file.map.pieces(from_offset..from_offset + len);
            pieces
                .next()
                .map(|(range, piece)| (range.end - range.start, piece, Arc::clone(&state.file.stored)))
        };
        // It became shorter meanwhile.
        let Some((part, piece, stored)) = piece else { return Ok(len) };
        if matches!(piece, Piece::Committed) && part >= CLONE_MIN {
            let root = stored.root().clone();
            let _room = self.room(root.encode().len())?;
            let _sharing = self.control.sharing();
            // Held before the record exists, so that no collector comes between; and the file still
            // has that content.
            self.control.note_hold();
            self.world.fail(self.world.store.meta.hold(super::HOLDER, std::slice::from_ref(&root)))?;
            let still = Arc::ptr_eq(&from.read().file.stored, &stored);
            if still {
                self.clone_into(to, offset, part, root, from_offset, from.number)?;
                return Ok(part);
            }
        }
        let part = part.min(1 << 20);
        let mut data = Vec::with_capacity(part as usize);
        self.read_file(from, from_offset, part as usize, &mut data)?;
        if data.is_empty() {
            return Ok(len);
        }
        let target = OpenFile { node: Arc::clone(&to.node), writes: true, appends: false, _run: None };
        self.write_file(&target, offset, &data, false)?;
        Ok(data.len() as u64)
    }

    /// Appends a record of a range that shares a held root. The log has room for it.
    fn clone_into(
        &self,
        to: &OpenFile,
        offset: u64,
        len: u64,
        root: outrigger_format::Root,
        from_offset: u64,
        from: u64,
    ) -> Result<()> {
        let node = &to.node;
        let _gate = self.enter();
        let mut state = node.write();
        let inode = node.number;
        let operation = Operation::Clone { from, root: root.clone(), from_offset, inode, offset, len };
        let appended = self.append(&operation, &[])?;
        state.file.map.clone_range(offset, len, Arc::new(root), from_offset, &appended);
        state.file.touched();
        state.modified(appended.time);
        self.tell_readers(&mut state, |prefix| prefix.wrote(offset..offset + len));
        self.world.mark(node);
        Ok(())
    }
}

/// True if an allocation is to leave zeroes or holes, false if it only makes room.
///
/// # Errors
/// `EOPNOTSUPP` for other modes.
pub(crate) fn zeroes(mode: FallocateFlags) -> Result<bool> {
    match mode.difference(FallocateFlags::KEEP_SIZE) {
        rest if rest.is_empty() => Ok(false),
        FallocateFlags::PUNCH_HOLE if mode.contains(FallocateFlags::KEEP_SIZE) => Ok(true),
        FallocateFlags::ZERO_RANGE => Ok(true),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The bytes of a file as they were when its pieces were noted, for a flusher to read.
pub(crate) fn read_noted(
    log: &Log,
    reader: &outrigger_store::read::Reader<'_>,
    root: &outrigger_format::Root,
    pieces: &[(std::ops::Range<u64>, Piece)],
    offset: u64,
    mut out: &mut [u8],
) -> outrigger_store::Result<()> {
    let mut at = offset;
    let mut next = pieces.partition_point(|(range, _)| range.end <= at);
    while !out.is_empty() {
        let Some((range, piece)) = pieces.get(next) else {
            return Err(outrigger_store::Error::damaged("a staged file is shorter than it was"));
        };
        let len = ((range.end - at) as usize).min(out.len());
        let (head, rest) = std::mem::take(&mut out).split_at_mut(len);
        let skip = at - range.start;
        match piece {
            Piece::Data(location) => {
                log.read(location.slice(skip as u32..skip as u32 + len as u32), head)?;
            }
            Piece::Zero => head.fill(0),
            Piece::Committed => read_exactly(reader, root, at, head)?,
            Piece::Clone(root, from) => read_exactly(reader, root, from + skip, head)?,
        }
        (out, at, next) = (rest, at + len as u64, next + 1);
    }
    Ok(())
}

fn read_exactly(
    reader: &outrigger_store::read::Reader<'_>,
    root: &outrigger_format::Root,
    offset: u64,
    out: &mut [u8],
) -> outrigger_store::Result<()> {
    if reader.read_into(root, offset, out)? < out.len() {
        return Err(outrigger_store::Error::damaged("a content is shorter than its manifest says"));
    }
    Ok(())
}
