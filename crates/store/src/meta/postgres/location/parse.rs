//! Reads the URL of a PostgreSQL store.

use std::path::PathBuf;
use std::time::Duration;

use super::{
    Address, CONNECTIONS, Location, NAME_MAX, Others, PATIENCE, SCHEMA, TlsMode, invalid, password_refused,
};
use crate::error::Result;

impl Location {
    pub(super) fn parse_with(url: &str, environment: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or_else(|| invalid("it does not begin with postgres://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (user, host),
            None => ("", authority),
        };
        if user.contains(':') {
            return Err(password_refused());
        }
        let given = |part: &str, name: &str| -> Result<Option<String>> {
            Ok(if part.is_empty() { environment(name) } else { Some(unescape(part)?) })
        };
        let (mut hosts, mut ports) = (Vec::new(), Vec::new());
        for part in host.split(',') {
            let (host, port) = split_port(part)?;
            hosts.push(unescape(host)?);
            ports.push(port);
        }
        if hosts == [""] {
            hosts = listed(&environment("PGHOST").unwrap_or_else(|| "localhost".to_owned()));
        }
        let user = given(user, "PGUSER")?.or_else(user_name);
        let user = user.ok_or_else(|| invalid("it says no user, and PGUSER does not"))?;
        let location = Self {
            servers: Vec::new(),
            primary: false,
            database: given(database, "PGDATABASE")?.unwrap_or_else(|| user.clone()),
            user,
            schema: SCHEMA.to_owned(),
            tls: TlsMode::Prefer,
            root_certificates: environment("PGSSLROOTCERT").map(PathBuf::from),
            pooled: false,
            connections: CONNECTIONS,
            patience: PATIENCE,
            others: Others::Verify,
        };
        let mut draft = Draft { location, hosts, ports, tls: environment("PGSSLMODE"), primary: None };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| invalid(format!("`{pair}` has no value")))?;
            draft.set(key, unescape(value)?)?;
        }
        draft.finish(environment("PGPORT").as_deref())
    }
}

/// A location while its URL is read.
struct Draft {
    location: Location,
    hosts: Vec<String>,
    /// One for all servers, or one for each.
    ports: Vec<Option<u16>>,
    tls: Option<String>,
    primary: Option<bool>,
}

impl Draft {
    /// Sets a parameter of the URL.
    fn set(&mut self, key: &str, value: String) -> Result<()> {
        let location = &mut self.location;
        match key {
            "schema" => location.schema = value,
            "host" => self.hosts = listed(&value),
            "port" => {
                let port = |port: &str| port.parse::<u16>().map(Some);
                let read = value.split(',').map(port).collect::<std::result::Result<Vec<_>, _>>();
                self.ports = read.map_err(|_| invalid(format!("port {value}")))?;
            }
            "target_session_attrs" => {
                self.primary = match value.as_str() {
                    "any" => Some(false),
                    "read-write" | "primary" => Some(true),
                    _ => {
                        let why = format!("target_session_attrs={value}: use read-write or any");
                        return Err(invalid(why));
                    }
                };
            }
            "sslmode" => self.tls = Some(value),
            "sslrootcert" => location.root_certificates = Some(value.into()),
            "pooling" if value == "transaction" || value == "session" => {
                location.pooled = value == "transaction";
            }
            "pooling" => return Err(invalid(format!("pooling={value}: use session or transaction"))),
            "connections" => {
                let count = value.parse().ok().filter(|count| (1..=64).contains(count));
                location.connections =
                    count.ok_or_else(|| invalid(format!("connections={value}: use 1 to 64")))?;
            }
            "patience" => {
                let secs = value.parse().ok().filter(|secs| (1..=3600).contains(secs));
                let secs = secs.ok_or_else(|| invalid(format!("patience={value}: use 1 to 3600 seconds")))?;
                location.patience = Duration::from_secs(secs);
            }
            "packs" => {
                location.others = match value.as_str() {
                    "verify" => Others::Verify,
                    "trust" => Others::Trust,
                    _ => return Err(invalid(format!("packs={value}: use verify or trust"))),
                };
            }
            "password" | "passfile" => return Err(password_refused()),
            _ => {
                return Err(invalid(format!(
                    "it does not know `{key}`, but schema, host, port, target_session_attrs, sslmode, sslrootcert, pooling, connections, patience and packs"
                )));
            }
        }
        Ok(())
    }

    /// The location, with what depends on several parameters.
    fn finish(self, usual_port: Option<&str>) -> Result<Location> {
        let Self { mut location, hosts, ports, tls, primary } = self;
        location.servers = addresses(hosts, ports, usual_port)?;
        // Among several servers only one is the primary. A URL that accepts a standby says so.
        location.primary = primary.unwrap_or(location.servers.len() > 1);
        location.tls = match tls.as_deref() {
            Some("disable") => TlsMode::Disable,
            Some("allow" | "prefer") => TlsMode::Prefer,
            Some("require") => TlsMode::Require,
            Some("verify-ca" | "verify-full") => TlsMode::VerifyFull,
            Some(other) => {
                return Err(invalid(format!("sslmode={other}: use disable, prefer, require or verify-full")));
            }
            None if location.is_local() => TlsMode::Prefer,
            None => TlsMode::VerifyFull,
        };
        if location.schema.is_empty()
            || location.schema.len() > NAME_MAX
            || location.schema.contains(['"', '@', '\0'])
        {
            return Err(invalid("a schema's name has 1 to 63 bytes, and neither \" nor @"));
        }
        Ok(location)
    }
}

/// Gives each host its port. A host without one gets `usual`.
fn addresses(hosts: Vec<String>, ports: Vec<Option<u16>>, usual: Option<&str>) -> Result<Vec<Address>> {
    if hosts.iter().any(String::is_empty) {
        return Err(invalid("one of its servers has no name"));
    }
    if ports.len() != 1 && ports.len() != hosts.len() {
        return Err(invalid(format!("{} ports of {} servers", ports.len(), hosts.len())));
    }
    let usual = match usual {
        Some(port) => port.parse::<u16>().map_err(|_| invalid(format!("PGPORT is {port}")))?,
        None => 5432,
    };
    let ports = ports.into_iter().map(|port| port.unwrap_or(usual)).cycle();
    Ok(hosts.into_iter().zip(ports).map(|(host, port)| Address { host, port }).collect())
}

fn listed(hosts: &str) -> Vec<String> {
    hosts.split(',').map(str::to_owned).collect()
}

fn user_name() -> Option<String> {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok()
}

fn split_port(host: &str) -> Result<(&str, Option<u16>)> {
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':')),
        None => match host.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host, None),
        },
    };
    let port = port
        .filter(|port| !port.is_empty())
        .map(|port| port.parse().map_err(|_| invalid(format!("`{port}` is no port"))));
    Ok((host, port.transpose()?))
}

fn unescape(part: &str) -> Result<String> {
    decode(part).ok_or_else(|| invalid("a %-escape in it is none"))
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).ok()
}
