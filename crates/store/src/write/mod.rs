//! The write path: files in, committed manifests out.
//!
//! ```text
//!  caller ──submit──▶ queue ──▶ workers: read, scan, cut, hash      (parallel; queue.rs, ingest.rs, large/; all but reading,
//!                                  │ in ticket order                 and looking up too, by devices: devices.rs)
//!                                  ▼
//!                               sequencer: dedup, frame, manifest   (one at a time; sequence.rs, dedup.rs, framer.rs,
//!                                  │ full frames                     manifest.rs, keep.rs)
//!                                  ▼
//!                               workers: compress, append to pack   (parallel; packer.rs; compressing by devices: frames.rs)
//!                                  │ full packs
//!                                  ▼
//!                               committer: seal, index, commit      (one thread; commit.rs)
//! ```
//!
//! **Back-pressure.** The queue takes a bounded number of batches. A worker takes a batch only when
//! it has a buffer, and gets its ticket in the same step. So the oldest ticket always owns a
//! buffer, and all later ones can wait for it. Workers prefer compressing to hashing, and hashing
//! to new batches: work in flight shrinks before it grows. Buffers and open frames bound the
//! memory, whatever the files' sizes; buffers are made when they are first needed, so a small
//! writer costs little. Frames at a device hold their buffers too. They have a bound of their own,
//! no thread waits for a particular one, and they always come back, so the oldest ticket gets a
//! buffer again. The exception is [`CommitWhen::AtTheEnd`]: its changes, roots included, wait in
//! memory for one transaction, without back-pressure. The caller limits its size.
//!
//! **Composed contents** ([`Parts`]) pass like large files. Workers ask the source for new bytes,
//! into the buffers in which they are cut and hashed. The sequencer puts holes and kept ranges
//! between the chunks, and reads the manifest nodes at the ends of a kept range itself. A content
//! that is one piece of new data and fits a batch passes like a small file.
//!
//! **Order of durability.** Pack objects durable → packs recorded as sealed → catalogue block
//! durable in a sealed meta pack → metadata transaction. A change is committed only when every
//! frame it refers to lies in a sealed pack. Changes are committed in the order in which they were
//! submitted, so a crash leaves a prefix. The catalogue blocks of a transaction share one pack: a
//! recovery from packs alone gets all or none of them, unless the blocks alone fill a pack.
//!
//! **Failures.** A source file that cannot be read is skipped, and reported. All other failures
//! stop the writer, also those of a [`PartSource`]; committed changes stay. Packs that were sealed
//! until then still belong to the session and count in its lookups. The first commit of its next
//! writer makes them live.

mod bytes;
mod catalogue;
mod commit;
mod compare;
mod compose;
mod dedup;
mod devices;
mod framer;
mod frames;
mod ingest;
mod item;
mod joining;
mod keep;
mod large;
mod manifest;
mod meta_frames;
mod oracle;
mod packer;
mod pipeline;
mod places;
mod policy;
mod progress;
mod queue;
mod sequence;
mod worker;

pub(crate) use catalogue::META_CODEC;
pub(crate) use catalogue::{append_at, append_mark};
pub use catalogue::{append_records, publish_catalogue};
pub use commit::{CommitTotals, CommitWhen};
pub use compose::{Composed, compose};
pub(crate) use dedup::Verification;
pub(crate) use item::hinted;
pub use item::{CODEC_HINT, Content, FileItem, Item, Part, PartSource, Parts, SourceFile, Target};
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use large::{Met, cut_in_segments};
pub use manifest::{ManifestBuilder, NodeSink};
pub(crate) use meta_frames::MANIFEST_FRAME;
pub use oracle::{Oracle, OracleMode, OracleRecord};
pub(crate) use packer::{OpenPack, StoredFrame};
pub use packer::{PackSink, SealedPack};
pub use pipeline::{WriteOptions, WriteSummary, Writer};
pub use policy::set_policy;
pub use progress::{Progress, ProgressView, Skipped, Step};
