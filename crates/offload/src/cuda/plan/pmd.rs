//! `pmd_hash`: level by level until one digest is left. The number of levels is known beforehand,
//! so all are launched at once.

use super::super::kernel::{self, Kernel};
use super::super::lane::Argument::{At, Long};
use super::super::lane::{Area, Lane};
use super::{Data, Step};
use crate::accelerator::Fault;
use crate::op::{Digest, PMD_SEGMENT};

/// Segments of one block.
const ROWS: usize = 32;

fn kernels(digest: Digest, staged: bool) -> Result<(Kernel, Kernel), Fault> {
    let (staged_level, direct_level, finish) = match digest {
        Digest::Md5 => (kernel::PMD_LEVEL_MD5, kernel::PMD_LEVEL_MD5_DIRECT, kernel::PMD_FINISH_MD5),
        Digest::Sha1 => (kernel::PMD_LEVEL_SHA1, kernel::PMD_LEVEL_SHA1_DIRECT, kernel::PMD_FINISH_SHA1),
        Digest::Sha256 => {
            (kernel::PMD_LEVEL_SHA256, kernel::PMD_LEVEL_SHA256_DIRECT, kernel::PMD_FINISH_SHA256)
        }
        Digest::Blake3 => return Err(Fault::Unsupported),
    };
    Ok((if staged { staged_level } else { direct_level }, finish))
}

pub(super) fn begin(lane: &mut dyn Lane, data: Data, digest: Digest) -> Result<Step, Fault> {
    let (level, finish) = kernels(digest, lane.is_staged())?;
    let (mut at, mut len) = (data.at, data.len);
    let mut areas = [Area::LevelA, Area::LevelB];
    loop {
        let segments = len.div_ceil(PMD_SEGMENT).max(1);
        let made = lane.memory(areas[0], segments * digest.len())?;
        lane.launch(level, segments.div_ceil(ROWS), 0, &[At(at), Long(len as u64), At(made)])?;
        (at, len) = (made, segments * digest.len());
        areas.swap(0, 1);
        if segments == 1 {
            break;
        }
    }
    let out = lane.memory(Area::Result, 32)?;
    lane.launch(finish, 1, 0, &[At(at), Long(data.len as u64), At(out)])?;
    Ok(Step { bytes: digest.len(), ..Step::default() })
}
