//! Attacks by other users who may write to a store's metadata: on agents, and by text on a
//! terminal.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{Place, Said};
use crate::site::Site;

/// A store in PostgreSQL, with a role that may write to it and is not the agents'.
struct Roles {
    site: Site,
    eve: String,
    url: String,
}

impl Roles {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            outrigger_workload::skipped!("only an agent of root's could run programs as others");
            return None;
        }
        // Tests here change rows of the database.
        let site = Site::postgres_with(&["--no-encryption"])?;
        let (server, schema) = site.postgres.as_ref().unwrap();
        let eve = format!("eve_{schema}");
        server.sql(&format!(
            "CREATE ROLE {eve} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {eve}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {eve}"
        ));
        let url = server.url_as(&eve, schema);
        site.put_numbers(10);
        // Programs of other users write to this file.
        std::fs::set_permissions(site.place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(site.place.path("ran"), "").unwrap();
        std::fs::set_permissions(site.place.path("ran"), std::fs::Permissions::from_mode(0o666)).unwrap();
        Some(Self { site, eve, url })
    }

    /// Acts like a user with Eve's password who is root in a namespace of her own: the row names
    /// root.
    fn by_eve(&self, args: &[&str]) -> Said {
        let said = Said::from(self.site.command(args).env("OUTRIGGER_STORE", &self.url).output().unwrap());
        assert_eq!(said.code, 0, "{args:?} {}", said.err);
        said
    }

    fn script(&self) -> String {
        format!("id -u >> {}", self.site.place.path("ran").display())
    }

    fn ran(&self) -> String {
        String::from_utf8(self.site.place.read("ran")).unwrap()
    }

    /// Runs an agent until it is idle, and returns its standard error.
    fn agent(&self, options: &[&str]) -> String {
        let args = [&["node", "--until-idle", "--nice", "0"], options].concat();
        let said = Said::from(self.site.command(&args).output().unwrap());
        assert_eq!(said.code, 0, "{}", said.err);
        said.err
    }
}

const WORK: [&str; 8] = ["--sandbox", "off", "--pattern", "1R->0", "--in", "numbers", "--tries", "1"];

#[test]
fn a_job_of_a_role_that_is_no_user_here_is_not_run() {
    let Some(roles) = Roles::new() else { return };
    let (site, eve) = (&roles.site, &roles.eve);
    let mut agent = site.command(&["node", "--allow-root", "--name", "careful"]);
    let mut agent = agent.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    site.until(|| site.done(&["node", "list"]).text().contains("careful"));
    let script = roles.script();
    let job = [&["run", "--detach"], &WORK[..], &["--", "sh", "-c", &script]].concat();
    let job = roles.by_eve(&job).text().trim().to_string();
    let mut line = String::new();
    BufReader::new(agent.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&format!("`{eve}` has made it")) && line.contains("--map"), "{line}");
    site.done(&["node", "drain", "careful", "--wait"]);
    assert!(agent.wait().unwrap().success());
    // A retry does not run it as the user whom the job names.
    let said = Said::from(site.command(&["job", "retry", &job, "--allow-root"]).output().unwrap());
    assert!(said.code == 1 && said.err.contains("has made it"), "{} {}", said.code, said.err);
    assert_eq!(roles.ran(), "");
    // With a line for Eve's role the agent runs it as that user.
    let map = site.place.write("roles", format!("{eve} daemon\n"));
    roles.agent(&["--map", map.to_str().unwrap()]);
    assert_eq!(roles.ran(), "1\n");
}

#[test]
fn a_rules_jobs_are_those_of_the_role_that_has_made_it() {
    let Some(roles) = Roles::new() else { return };
    let (site, eve) = (&roles.site, &roles.eve);
    let script = roles.script();
    let add = ["rule", "add", "theirs", "--on", "close", "--existing"];
    roles.by_eve(&[&add, &WORK[..], &["--", "sh", "-c", &script]].concat());
    // The agent makes the job of the rule, by its own role, but the job counts as Eve's.
    let said = roles.agent(&["--allow-root"]);
    assert!(said.contains(&format!("`{eve}` has made it")), "{said}");
    assert_eq!(roles.ran(), "");
    let map = site.place.write("roles", format!("{eve} daemon\n"));
    roles.agent(&["--map", map.to_str().unwrap()]);
    assert_eq!(roles.ran(), "1\n");
    // Eve cannot change a rule of the agent's own role.
    site.done(&[&["rule", "add", "own", "--on", "close"], &WORK[..], &["--", "true"]].concat());
    let pause = site.command(&["rule", "pause", "own"]).env("OUTRIGGER_STORE", &roles.url).output().unwrap();
    let said = Said::from(pause);
    assert!(said.code == 1 && said.err.contains("only the role that has made"), "{}", said.err);
    // As one user, and only for some users.
    let job = [&["run", "--detach"], &WORK[..], &["--", "sh", "-c", &script]].concat();
    let mut agent = site.command(&["node", "--name", "games", "--run-as", "games", "--users", "root"]);
    let mut agent = agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    site.until(|| site.done(&["node", "list"]).text().contains("games"));
    let job = site.done(&job).text().trim().to_string();
    site.done(&["job", "wait", &job, "--timeout", "60"]);
    assert_eq!(roles.ran(), "1\n5\n");
    site.done(&["node", "drain", "games", "--wait"]);
    assert!(agent.wait().unwrap().success());
}

/// An agent that trusts only signatures: no writer of the database can make a job, change it, or
/// exchange parts of it.
#[test]
fn an_agent_of_signed_jobs_runs_what_was_signed_and_as_it_was() {
    let Some(roles) = Roles::new() else { return };
    let site = &roles.site;
    let key = |name: &str| {
        let path = site.place.path(name);
        let mut keygen = Command::new("ssh-keygen");
        let said = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        (path.display().to_string(), std::fs::read_to_string(path.with_extension("pub")).unwrap())
    };
    let ((ann, ann_public), (eve, _)) = (key("ann"), key("eve"));
    let signers = site.place.write("signers", format!("root {ann_public}"));
    // The job waits for an agent, because there is one; but this agent runs nobody's jobs.
    let mut other = Site::spawn(site.command(&["node", "--name", "other", "--users", "daemon"]));
    site.until(|| site.done(&["node", "list"]).text().contains("other"));
    let script = roles.script();
    let job = |sign: &[&str]| {
        let args = [&["run", "--detach"], sign, &WORK[..], &["--", "sh", "-c", &script]].concat();
        roles.by_eve(&args).text().trim().to_string()
    };
    let mut refused = vec![(job(&[]), "it is not signed"), (job(&["--sign", &eve]), "no key of `root`")];
    // Nobody can change the program, the inputs or the time of a signed job, not even the owner of
    // the tables.
    let (server, schema) = site.postgres.as_ref().unwrap();
    for (change, says) in [
        ("job SET spec = replace(spec, 'id -u', 'id -g') WHERE id", "no key of `root`"),
        ("job_input SET path = 'other' WHERE job", "is not what was written"),
        ("job SET spec = replace(spec, '\"at\":1', '\"at\":2') WHERE id", "more than a day ago"),
    ] {
        let changed = job(&["--sign", &ann]);
        server.sql(&format!("UPDATE {schema}.{change} = {changed}"));
        refused.push((changed, says));
    }
    job(&["--sign", &ann]);
    let said = roles.agent(&["--run-as", "games", "--signed-by", signers.to_str().unwrap()]);
    for (job, says) in refused {
        let is_said = |line: &str| line.contains(&format!("job {job} ")) && line.contains(says);
        assert!(said.lines().any(is_said), "job {job}, {says}: {said}");
    }
    assert_eq!(roles.ran(), "5\n");
    site.done(&["node", "drain", "other", "--wait"]);
    assert!(other.wait().unwrap().success());
    let run = |args: &[&str]| Said::from(site.command(args).stdin(Stdio::null()).output().unwrap());
    let said = run(&["run", "--sign", &ann, "--in", "-", "--pattern", "1W->0", "--", "cat"]);
    assert!(said.code == 2 && said.err.contains("--sign"), "{}", said.err);
    let said = run(&["run", "--sign", "missing", "--in", "numbers", "--pattern", "1R->0", "--", "cat"]);
    assert!(said.code == 1 && said.err.contains("missing"), "{}", said.err);
}

#[test]
fn options_that_say_nothing_clear_are_refused() {
    let place = Place::new();
    place.write("roles", "ann\n");
    for (options, says) in [
        (&["--map", "roles"][..], "line 1"),
        (&["--map", "missing"], "--map missing"),
        (&["--run-as", "root"], "cannot run as root"),
        (&["--run-as", "nobody-of-this-name"], "no user"),
        (&["--users", "root,nobody-of-this-name"], "no user"),
        (&["--sandbox", "some"], "strict"),
        (&["--signed-by", "missing"], "--signed-by missing"),
    ] {
        let said = place.run(&[&["node", "--until-idle"], options].concat());
        assert!(said.code == 2 && said.err.contains(says), "{options:?}: {} {}", said.code, said.err);
    }
}

/// A terminal would obey all of this: a title, a colour, C1 controls, and a mark that turns text.
const THEIRS: &str = "\u{1b}]0;title\u{7}\u{9b}31m\u{202e}evil\r";

fn assert_shown(what: &str, text: &str) {
    let obeyed = |c: char| c.is_control() && !"\n\t".contains(c) || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(obeyed) && text.contains("evil"), "{what}: {text:?}");
}

#[test]
fn what_programs_and_arguments_say_is_shown_and_not_obeyed() {
    let place = Place::plain();
    place.write("in", "x\n");
    place.done(&["put", "in"]);
    let script = format!("printf '%s\\n' '{THEIRS}' >&2; exit 3");
    let args = ["run", "--sandbox", "off", "--tries", "1", "--pattern", "1R->0", "--in", "in", "--"];
    let said = place.run(&[&args[..], &["sh", "-c", &script]].concat());
    assert_shown("run", &said.err);
    for command in
        [&["jobs"][..], &["jobs", "--json"], &["job", "show", "1"], &["job", "show", "1", "--json"]]
    {
        assert_shown(&format!("{command:?}"), &place.done(command).text());
    }
    let waits = place.run(&["job", "wait", "1"]);
    assert_shown("job wait", &waits.err);
    let retried = place.run(&["job", "retry", "1"]);
    assert_shown("job retry", &retried.err);
    assert!(place.done(&["job", "logs", "1"]).text().contains(THEIRS), "into a pipe it goes as it is");
    let script = Path::new("/usr/bin/script");
    if !script.exists() {
        outrigger_workload::skipped!("there is no script (bsdutils), which makes a terminal");
        return;
    }
    let program = env!("CARGO_BIN_EXE_outrigger");
    let mut command = Command::new(script);
    command.args(["-qec", &format!("{program} job logs 1"), "/dev/null"]).current_dir(place.path(""));
    let output = command.env("OUTRIGGER_STORE", "store").stdin(Stdio::null()).output().unwrap();
    // The terminal itself ends lines so.
    assert_shown("job logs", &String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n"));
}
