//! Contents that a job's threads give to the write pipeline.

use std::io::{Error as IoError, ErrorKind as Io, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use outrigger_format::Root;
use outrigger_format::catalogue::{Attributes, FileKind};
use outrigger_store::local::put::made_now;
use outrigger_store::write::{Content, Part, PartSource, Parts};
use outrigger_store::{Error, ErrorKind, Result};

/// Blocks that wait for the pipeline at most.
const WAITING: usize = 4;

/// Attributes of a file that is made now, until it has a name.
pub(crate) fn made_file() -> Attributes {
    made_now(FileKind::File, 0o600)
}

/// A composed content without new data.
struct NothingNew;

impl PartSource for NothingNew {
    fn read_at(&self, offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Invalid, format!("nothing new was said to be at {offset}")))
    }
}

/// Contents, one after the other, as they are stored.
pub(crate) fn joined(roots: impl Iterator<Item = Root>) -> Content {
    let whole = |root: Root| Part::Keep { from: 0, to: root.len(), root: Arc::new(root) };
    let parts = roots.filter(|root| !root.is_empty()).map(whole).collect();
    Content::Parts(Parts { parts, source: Arc::new(NothingNew) })
}

/// A part of a stream for the pipeline.
pub(crate) enum Block {
    Data(Vec<u8>),
    /// The writer has ended well.
    End,
}

/// The raw file as the pipeline reads it; an error unless the writer ended well.
pub(crate) struct Raw {
    blocks: Receiver<Block>,
    current: std::io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Raw {
    /// It reads the blocks that are sent; only few wait at once.
    pub fn channel() -> (SyncSender<Block>, Self) {
        let (sender, blocks) = sync_channel(WAITING);
        (sender, Self { blocks, current: std::io::Cursor::new(Vec::new()), ended: false })
    }
}

impl Read for Raw {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        loop {
            let len = self.current.read(room)?;
            if len > 0 || room.is_empty() || self.ended {
                return Ok(len);
            }
            match self.blocks.recv() {
                Ok(Block::Data(data)) => self.current = std::io::Cursor::new(data),
                Ok(Block::End) => self.ended = true,
                Err(_) => return Err(IoError::new(Io::UnexpectedEof, "the writer was lost")),
            }
        }
    }
}
