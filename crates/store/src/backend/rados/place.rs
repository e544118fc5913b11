//! Which hosts hold a pack.
//!
//! ```text
//!  ID.pack ─▶ Jenkins' hash of namespace and name ─▶ placement group (as many as the pool has) ─▶ OSDs (CRUSH) ─▶ hosts
//! ```
//!
//! The first two steps are computed here, as Ceph does. The monitors are asked once for the OSDs of
//! a placement group and the host of an OSD, and their answers are kept for [`KEPT`]: a few hundred
//! serve any number of packs. They may be outdated while the cluster moves data. So they are advice
//! on where to run something, and never on where to read.
//!
//! As an id decides where its pack will lie, a writer can choose a host by choosing among ids
//! (`write/packer.rs`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::time::Duration;

use outrigger_clock::Instant;
use rustix::io::Errno;
use serde::Deserialize;

use super::failed;
use super::library::Cluster;
use crate::error::{Error, Result};

/// How long an answer counts.
const KEPT: Duration = Duration::from_secs(60);

/// The cached answers about one pool.
pub(super) struct Map {
    pool: String,
    /// The bytes that are hashed before an object's name.
    before: Vec<u8>,
    number: i64,
    known: Mutex<Option<Known>>,
}

struct Known {
    since: Instant,
    groups: u32,
    hosts_of: HashMap<u32, Vec<String>>,
    host_of: HashMap<i64, String>,
}

#[derive(Deserialize)]
struct Groups {
    pg_num: u32,
}

#[derive(Deserialize)]
struct Acting {
    acting: Vec<i64>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    host: String,
    #[serde(default)]
    crush_location: HashMap<String, String>,
}

impl Found {
    /// The host's name in CRUSH's map, by which data is spread. The host may call itself
    /// differently.
    fn name(mut self) -> String {
        self.crush_location.remove("host").unwrap_or(self.host)
    }
}

#[derive(Deserialize)]
struct Tree {
    nodes: Vec<Bucket>,
}

#[derive(Deserialize)]
struct Bucket {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Map {
    /// All hosts of the cluster.
    pub(super) fn all_hosts(&self, cluster: &Cluster) -> Result<Vec<String>> {
        let nodes = ask::<Tree>(cluster, r#"{"prefix":"osd tree","format":"json"}"#)?.nodes;
        let mut hosts: Vec<String> =
            nodes.into_iter().filter(|node| node.kind == "host").map(|node| node.name).collect();
        hosts.sort_unstable();
        hosts.dedup();
        Ok(hosts)
    }

    pub(super) fn new(pool: &str, namespace: &str, number: i64) -> Self {
        let mut before = namespace.as_bytes().to_vec();
        if !before.is_empty() {
            before.push(0o37);
        }
        Self { pool: pool.into(), before, number, known: Mutex::new(None) }
    }

    /// The hosts of an object, the primary's first.
    pub(super) fn hosts(&self, cluster: &Cluster, name: &str) -> Result<Vec<String>> {
        let mut known = self.known.lock().expect("no panic while it is held");
        if known.as_ref().is_none_or(|known| known.since.elapsed() > KEPT) {
            let command = format!(
                r#"{{"prefix":"osd pool get","pool":"{}","var":"pg_num","format":"json"}}"#,
                self.pool
            );
            let groups = ask::<Groups>(cluster, &command)?.pg_num.max(1);
            let since = Instant::now();
            *known = Some(Known { since, groups, hosts_of: HashMap::new(), host_of: HashMap::new() });
        }
        let known = known.as_mut().expect("just filled");
        let group = group_of(&[&self.before, name.as_bytes()].concat(), known.groups);
        if let Some(hosts) = known.hosts_of.get(&group) {
            return Ok(hosts.clone());
        }
        let command = format!(r#"{{"prefix":"pg map","pgid":"{}.{group:x}","format":"json"}}"#, self.number);
        let acting = ask::<Acting>(cluster, &command)?.acting;
        let mut hosts: Vec<String> = Vec::new();
        // CRUSH returns the largest number for "none".
        for osd in acting.into_iter().filter(|osd| (0..0x7fff_ffff).contains(osd)) {
            let host = match known.host_of.entry(osd) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let command = format!(r#"{{"prefix":"osd find","id":{osd},"format":"json"}}"#);
                    unknown.insert(ask::<Found>(cluster, &command)?.name())
                }
            };
            if !host.is_empty() && !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        known.hosts_of.insert(group, hosts.clone());
        Ok(hosts)
    }
}

fn ask<T: serde::de::DeserializeOwned>(cluster: &Cluster, command: &str) -> Result<T> {
    let answer = cluster.ask(command).map_err(|errno| failed(errno, "cannot ask the monitors".into()))?;
    serde_json::from_slice(&answer).map_err(|error: serde_json::Error| -> Error {
        failed(Errno::PROTO, format!("what the monitors say: {error}"))
    })
}

/// The placement group of a name, of `groups`: Ceph's stable modulus, which moves as few names as
/// possible when there are more groups.
fn group_of(name: &[u8], groups: u32) -> u32 {
    let hash = jenkins(name);
    let mask = groups.next_power_of_two() - 1;
    if hash & mask < groups { hash & mask } else { hash & (mask >> 1) }
}

/// Robert Jenkins' hash, as Ceph has it.
fn jenkins(bytes: &[u8]) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    fn mix(a: &mut u32, b: &mut u32, c: &mut u32) {
        for (first, second, third) in [(13, 8, 13), (12, 16, 5), (3, 10, 15)] {
            *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> first);
            *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << second);
            *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> third);
        }
    }
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |word, byte| (word << 8) | u32::from(*byte));
    let (mut a, mut b, mut c) = (GOLDEN, GOLDEN, 0u32);
    let mut blocks = bytes.chunks_exact(12);
    for block in &mut blocks {
        a = a.wrapping_add(word(&block[..4]));
        b = b.wrapping_add(word(&block[4..8]));
        c = c.wrapping_add(word(&block[8..]));
        mix(&mut a, &mut b, &mut c);
    }
    let rest = blocks.remainder();
    let part = |from: usize, to: usize| word(&rest[from.min(rest.len())..to.min(rest.len())]);
    a = a.wrapping_add(part(0, 4));
    b = b.wrapping_add(part(4, 8));
    // The lowest byte of the last word is the length's.
    c = c.wrapping_add(bytes.len() as u32).wrapping_add(part(8, 11) << 8);
    mix(&mut a, &mut b, &mut c);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_are_no_power_of_two_split_stably() {
        for groups in 1..40 {
            let names: Vec<String> = (0..500).map(|n| format!("{n:016x}.pack")).collect();
            let mut seen = vec![0; groups as usize];
            for name in &names {
                let group = group_of(name.as_bytes(), groups);
                seen[group as usize] += 1;
                // With one group more, a name stays where it is or goes into the new one.
                let more = group_of(name.as_bytes(), groups + 1);
                assert!(more == group || more == groups, "{name}: {group} of {groups}, then {more}");
            }
            assert!(seen.iter().all(|&count| count > 0), "{groups}: {seen:?}");
        }
    }
}
