//! Large files of an archive: their bytes go to the pipeline through a bounded channel while they are
//! read, so memory stays bounded.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use outrigger_store::write::Item;
use outrigger_store::{Error, ErrorKind};

use super::Archive;
use super::import::{Importer, Stop, WHOLE_MAX};

impl Importer<'_> {
    /// Hands over the stored bytes of a large or sparse file while they are read.
    pub(super) fn stream<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        item: impl FnOnce(Box<dyn Read + Send>) -> Item,
    ) -> Result<(), Stop> {
        let (sender, receiver) = sync_channel(4);
        let reader = ChannelReader { receiver, part: io::Cursor::new(Vec::new()), ended: false };
        self.writer.submit(item(Box::new(reader)))?;
        loop {
            let mut part = vec![0; WHOLE_MAX as usize];
            let read = archive.read(&mut part);
            let filled = *read.as_ref().unwrap_or(&0);
            part.truncate(filled);
            let message = match &read {
                Ok(_) => Ok(part),
                Err(_) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends early")),
            };
            self.send(&sender, message)?;
            // The empty part has told the reader about the end.
            if read? == 0 {
                return Ok(());
            }
        }
    }

    /// Waits for room, but not for a pipeline that has stopped.
    fn send(
        &self,
        sender: &SyncSender<io::Result<Vec<u8>>>,
        mut part: io::Result<Vec<u8>>,
    ) -> Result<(), Stop> {
        loop {
            match sender.try_send(part) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(_)) if self.writer.has_stopped() => break,
                Err(TrySendError::Full(back)) => part = back,
                Err(TrySendError::Disconnected(_)) => break,
            }
            outrigger_clock::sleep(Duration::from_millis(1));
        }
        if self.writer.has_stopped() {
            return Err(Error::new(ErrorKind::Cancelled, "the write pipeline has stopped").into());
        }
        // The file's reader has seen its end, or an error that it has reported.
        Ok(())
    }
}

/// The pipeline's end of a channel.
struct ChannelReader {
    receiver: Receiver<io::Result<Vec<u8>>>,
    part: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.part.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.ended {
                return Ok(read);
            }
            let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is not read any further");
            let part = self.receiver.recv().map_err(|_| gone())??;
            self.ended = part.is_empty();
            self.part = io::Cursor::new(part);
        }
    }
}
