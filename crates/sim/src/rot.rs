//! Examines rotten packs at the end of a run: a check finds all of the damage, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use outrigger_format::PackId;
use outrigger_store::check::{Finding, FindingKind, Severity};

use crate::cluster::{Cluster, collect_and_check, names_in, told};
use crate::host::Host;
use crate::life::final_looks;
use crate::planted::{self, Planted};

/// A check must find every rotten pack, and name the files that cannot be read. All other files
/// must be readable. A collector that ran before must not have changed that.
///
/// # Errors
/// The first violation.
pub(crate) fn look(cluster: &Cluster, dir: &Path) -> Result<(), String> {
    let host = Host::mount(&cluster.servers, dir, &Arc::default()).map_err(told)?;
    let rotten: Vec<PackId> = cluster.servers.rotten().packs.keys().copied().collect();
    let names = cluster.servers.rotten().names.clone();
    let is_hit = |what: &str| {
        let mut named = names_in(what).peekable();
        named.peek().is_some() && named.all(|name| names.contains(name))
    };
    let (collected, mut findings) = collect_and_check(&host).map_err(told)?;
    if let Err(error) = collected
        && !is_hit(&error.to_string())
    {
        return Err(format!("with a pack that has rotted, gc says: {error}"));
    }
    if planted::is(Planted::MissedRot) {
        findings.clear();
    }
    let is_named = |id: &PackId| findings.iter().any(|finding| finding.pack == Some(id.to_string()));
    let rows = host.store.meta.packs().map_err(told)?;
    let needed = rows.iter().filter(|row| row.is_committed() && rotten.contains(&row.id));
    if let Some(missed) = needed.map(|row| row.id).find(|id| !is_named(id)) {
        return Err(format!("pack {missed} has rotted, and check does not find it: {findings:?}"));
    }
    // The index lacks a pack whose footer cannot be read.
    let has_unreadable = findings.iter().any(|finding| finding.kind == FindingKind::Pack);
    let is_known = |finding: &&Finding| {
        finding.severity == Severity::Damage && is_hit(&format!("{:?} {}", finding.pack, finding.what))
            || has_unreadable && finding.kind == FindingKind::Index
    };
    let more: Vec<_> = findings.iter().filter(|finding| !is_known(finding)).collect();
    if !more.is_empty() {
        return Err(format!("besides packs that have rotted, check finds: {more:?}"));
    }
    let now = |finding: &Finding| {
        let files = finding.files.iter().filter(|file| file.snapshot.is_none() && file.version.is_none());
        files.map(|file| file.path.clone()).collect::<Vec<_>>()
    };
    let lost: BTreeSet<String> = findings.iter().flat_map(now).collect();
    // A named file may be readable all the same: perhaps only a checksum of it has rotted.
    final_looks(cluster, &host, "rot.0", &|path| lost.contains(path))?;
    host.volume.close(|| ()).map_err(told)
}
