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
//! **Back-pressure.** The queue takes a bounded number of batches. A worker takes a batch only with a buffer in its
//! hands, and tickets are given out in the same step, so the oldest ticket always owns a buffer and everything
//! behind it can wait for it. Workers prefer compressing to hashing to taking new batches: what is in flight shrinks
//! before it grows. Memory is bounded by buffers plus open frames, whatever the files' sizes; buffers are made when they are first
//! wanted, so a writer of little costs little. Frames that are with a device hold their buffers too; they are bounded by themselves, nobody waits for
//! one of them in particular, and they always come back, so there is a buffer for the oldest ticket again. The exception is [`CommitWhen::AtTheEnd`]: its changes, roots included, wait in memory for
//! one transaction, and nobody waits for them; what limits a batch is up to the caller.
//!
//! **Composed contents** ([`Parts`]) pass like large files: workers ask the source for new bytes, into the buffers that they are cut and hashed
//! in; the sequencer puts holes and what is kept of stored files between the chunks, and reads from the store the manifest nodes at the ends of
//! a kept range, itself. A content that is one piece of new data and fits a batch passes like a small file.
//!
//! **Order of durability.** Pack objects durable → packs recorded as sealed → catalogue block durable in a sealed meta pack
//! → metadata transaction. A change is committed only when every frame it refers to lies in a sealed pack, and changes are
//! committed in the order in which they were submitted, so a crash leaves a prefix. The catalogue blocks of a transaction share one pack: what
//! is recovered from packs alone has all of it or nothing, unless the blocks alone fill a pack.
//!
//! **Failures.** A source file that cannot be read is skipped, and said so. All other failures stop the writer, those of a [`PartSource`]
//! too: what was committed stays. Packs that were sealed until then still belong to the session, count in its lookups, and become live with the first commit
//! of its next writer.

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
pub(crate) use catalogue::append_at;
pub use catalogue::{append_records, tell_catalogue};
pub use commit::{CommitTotals, CommitWhen};
pub use compose::{Composed, compose};
pub(crate) use dedup::Vouching;
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
