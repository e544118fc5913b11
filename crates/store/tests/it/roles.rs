//! Attacks by a role that may write: on what PostgreSQL says of who made a job or a rule.

use crate::meta_support;
use outrigger_store::meta::jobs::Splits;

use meta_support::kind;
use outrigger_store::ErrorKind;
use outrigger_store::meta::jobs::{JobState, Jobs, NewJob};
use outrigger_store::meta::records::{MadeBy, Records};
use outrigger_store::meta::{Location, PostgresMeta};
use outrigger_workload::postgres::Server;

fn open(url: &str) -> PostgresMeta {
    PostgresMeta::open(Location::parse(url).unwrap(), false).unwrap()
}

/// docs/threat-model.md says who is believed.
#[test]
fn a_row_says_which_role_has_made_it_whatever_a_writer_does() {
    let Some(server) = Server::shared() else { return };
    let schema = server.fresh();
    drop(PostgresMeta::create(Location::parse(&server.url(&schema)).unwrap(), "a test").unwrap());
    let roles = ["ann", "eve"].map(|name| format!("{name}_{schema}"));
    let [ann, eve] = &roles;
    for role in &roles {
        server.sql(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        ));
    }
    let of = |role: &str| open(&server.url_as(role, &schema));
    let by = |role: &str| Some(MadeBy { role: Some(role.to_string()), asks: ann.clone() });
    let anns = of(ann);
    let job = anns.create_job(&NewJob { spec: "ann's".into(), ..NewJob::default() }).unwrap();
    assert_eq!(anns.job(job).unwrap().unwrap().by, by(ann));
    assert!(anns.add_record("rule", "ann's", "text").unwrap());
    assert!(anns.swap_record("rule", "ann's", "text", Some("text 2")).unwrap());
    // Eve writes whatever she likes, and is Eve.
    let insert = format!(
        "INSERT INTO {schema}.job (state, spec, why, created, changed, role) VALUES (0, 'eve''s', '', 0, 0, '{ann}')"
    );
    let record = |kind: &str| {
        format!(
            "INSERT INTO {schema}.record (kind, name, value, changed, role) VALUES ('{kind}', 'eve''s', '', 0, '{ann}')"
        )
    };
    for sql in [&insert, &record("rule"), &record("none")] {
        server.psql(eve, sql).unwrap();
    }
    let newest = Jobs::jobs(&anns, 1).unwrap().pop().unwrap();
    assert_eq!((newest.spec.as_str(), newest.by), ("eve's", by(eve)));
    let rules = anns.records("rule").unwrap();
    assert_eq!(rules.iter().map(|rule| rule.by.clone()).collect::<Vec<_>>(), [by(ann), by(eve)]);
    // She can neither change Ann's rows nor make hers Ann's.
    for change in [
        format!("job SET spec = 'x' WHERE id = {}", job.0),
        format!("job SET role = '{eve}' WHERE id = {}", job.0),
        format!("job SET role = '{ann}' WHERE spec = 'eve''s'"),
        "record SET value = 'x' WHERE name = 'ann''s'".to_string(),
        format!("record SET role = '{ann}' WHERE kind = 'rule' AND name = 'eve''s'"),
        "record SET kind = 'rule', name = 'more' WHERE kind = 'none'".to_string(),
        "record SET kind = 'none' WHERE name = 'ann''s'".to_string(),
    ] {
        let tried = server.psql(eve, &format!("UPDATE {schema}.{change}"));
        assert!(tried.is_err(), "{change}");
    }
    // Nor does she say where everybody finds the packs.
    let elsewhere = format!("INSERT INTO {schema}.about (one, version, config) VALUES (1, 1, 'x')");
    for sql in
        [format!("UPDATE {schema}.about SET config = 'x'"), format!("DELETE FROM {schema}.about"), elsewhere]
    {
        assert!(server.psql(eve, &sql).unwrap_err().to_string().contains("only the owner"), "{sql}");
    }
    let lifts = format!("ALTER TABLE {schema}.job DISABLE TRIGGER ALL");
    assert!(server.psql(eve, &lifts).is_err());
    assert!(server.psql(eve, "SET session_replication_role = replica").is_err());
    // Her work on Ann's job is that of any agent.
    let eves = of(eve);
    assert!(eves.end_job(job, JobState::Cancelled, "").unwrap());
    eves.retry_job(job).unwrap();
    assert_eq!(anns.job(job).unwrap().unwrap().by, by(ann));
    assert_eq!(kind(eves.swap_record("rule", "ann's", "text 2", Some("text 3"))), ErrorKind::Denied);
    drop((anns, eves));
    for role in &roles {
        server.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}
