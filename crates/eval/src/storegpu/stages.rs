//! Figures 11 to 17: each stage's share of one call, on modelled devices and on real ones.

use outrigger_offload::op::Digest;
use outrigger_offload::sim::Speed;

use super::direct;
use crate::lab::{Failed, Lab};
use crate::record::Outcome;
use crate::{models, shares};

/// One plot per device.
pub fn shares(lab: &Lab) -> Result<Outcome, Failed> {
    let mut outcome = Outcome::default();
    models::note(&mut outcome);
    let sizes: &[usize] = lab.scale.pick(
        &[64 << 10],
        &[1 << 20, 8 << 20, 32 << 20, 96 << 20],
        &[64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 96 << 20],
    );
    for (name, speed, paper) in [
        ("GeForce 8800 without optimisations", models::GEFORCE_8800_BARE, Some(65.0)),
        ("GeForce 8800 with all optimisations", models::GEFORCE_8800, Some(20.0)),
        ("a GPU on PCIe 5.0, all optimisations", Speed::PCIE5_GPU, None),
    ] {
        let title = format!("Stages of hashing one block: {name}");
        let shares = shares::modelled(lab, speed, &direct(Digest::Md5), sizes, title)?;
        let [_, _, kernel, ..] = shares.largest;
        outcome.find(format!("kernel's share of the largest, {name}"), kernel, "%", paper);
        outcome.plots.extend([shares.times, shares.plot]);
    }
    for (name, shares) in shares::real(lab, &direct(Digest::Md5), sizes, "Stages of hashing one block")? {
        outcome.find(format!("kernel's share of the largest, {name}"), shares.largest[2], "%", None);
        outcome.plots.extend([shares.times, shares.plot]);
    }
    Ok(outcome)
}
