//! How much of a job's input lies on this host and how much elsewhere, as text and as JSON. Only
//! some engines know it; for the others there is no output.

use outrigger_active::job::spec::Spec;
use outrigger_active::progress::View;
use outrigger_active::runner::{Nearby, nearby};
use outrigger_store::Store;
use outrigger_store::meta::jobs::JobId;

use crate::json::Object;
use crate::output::size;

/// Where a job's inputs lie; `None` if that is unknown. It is only information, so errors are
/// dropped.
pub fn nearby_of(store: &Store, job: JobId) -> Option<Nearby> {
    let row = store.jobs().job(job).ok()??;
    nearby(store, job, &Spec::decode(&row.spec).ok()?).ok()?
}

/// `inputs: 1.00 GiB, of which 600 MiB lie on this host, 900 MiB on hosts with agents`.
pub fn describe_nearby(nearby: &Nearby) -> String {
    let Nearby { bytes, bytes_looked_at, bytes_here, bytes_with_agents } = *nearby;
    let looked = if bytes_looked_at < bytes {
        format!(" (of the {} that were looked at)", size(bytes_looked_at))
    } else {
        String::new()
    };
    format!(
        "inputs: {}, of which {} lie on this host, {} on hosts with agents{looked}",
        size(bytes),
        size(bytes_here),
        size(bytes_with_agents)
    )
}

/// As JSON; null if unknown.
pub fn nearby_json(nearby: Option<&Nearby>) -> Option<serde_json::Value> {
    nearby.map(|nearby| {
        Object::new()
            .with("bytes", nearby.bytes)
            .with("bytes_looked_at", nearby.bytes_looked_at)
            .with("bytes_here", nearby.bytes_here)
            .with("bytes_with_agents", nearby.bytes_with_agents)
            .into()
    })
}

/// ` (600 MiB from packs on this host, 424 MiB from others)`; empty if unknown.
pub fn describe_here(view: &View) -> String {
    if is_known(view) {
        format!(
            " ({} from packs on this host, {} from others)",
            size(view.bytes_here),
            size(view.bytes_elsewhere)
        )
    } else {
        String::new()
    }
}

/// True if the location of the bytes read was known.
pub fn is_known(view: &View) -> bool {
    view.bytes_here + view.bytes_elsewhere > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_said_and_nothing_else() {
        let all = Nearby {
            bytes: 3 << 20,
            bytes_looked_at: 3 << 20,
            bytes_here: 1 << 20,
            bytes_with_agents: 2 << 20,
        };
        let said = "inputs: 3.00 MiB, of which 1.00 MiB lie on this host, 2.00 MiB on hosts with agents";
        assert_eq!(describe_nearby(&all), said);
        let some = Nearby { bytes: 5 << 30, ..all };
        assert_eq!(
            describe_nearby(&some),
            said.replace("3.00 MiB", "5.00 GiB") + " (of the 3.00 MiB that were looked at)"
        );
        assert_eq!(nearby_json(Some(&all)).unwrap()["bytes_here"], 1 << 20);
        assert_eq!(nearby_json(None), None);
        let mut view = View::default();
        assert_eq!(describe_here(&view), "");
        view.bytes_elsewhere = 17;
        assert_eq!(describe_here(&view), " (0 B from packs on this host, 17 B from others)");
    }
}
