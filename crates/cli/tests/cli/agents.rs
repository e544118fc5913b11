//! Agents and runners that share jobs, over both metadata engines. When one is killed, nothing is
//! lost, and no split has a visible effect twice.

use std::path::Path;
use std::process::Stdio;

use crate::run::{Said, fed};
use crate::site::Site;

fn begun(ran: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(ran).unwrap_or_default();
    let mut numbers: Vec<u64> = text.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn queued_jobs_are_done_by_agents_which_end_when_they_are_drained() {
    for site in Site::all() {
        let text = site.put_numbers(1000);
        let ran = site.place.path("ran");
        let mut agents = [site.agent("one", "1"), site.agent("two", "2")];
        let twice = Said::from(site.command(&["node", "--allow-root", "--name", "one"]).output().unwrap());
        assert!(twice.code != 0 && twice.err.contains("--name"), "{}", twice.err);
        let job = site.queue("8", &ran, "");
        site.done(&["job", "wait", &job, "--timeout", "60"]);
        assert_eq!(site.done(&["cat", "out"]).text(), text);
        assert_eq!(begun(&ran), (0..8).collect::<Vec<_>>(), "each split once");
        // A cancelled job that is retried is queued as well.
        let job = site.queue("2", &ran, "sleep 30;");
        site.until(|| begun(&ran).len() == 10);
        site.done(&["job", "cancel", &job]);
        site.done(&["job", "retry", &job, "--detach"]);
        site.until(|| begun(&ran).len() == 12);
        site.done(&["job", "cancel", &job]);
        let nodes = site.done(&["node", "list", "--json"]).json();
        assert_eq!(nodes["nodes"].as_array().unwrap().len(), 2, "{nodes}");
        assert_eq!(
            (nodes["nodes"][1]["name"].as_str(), nodes["nodes"][1]["slots"].as_u64()),
            (Some("two"), Some(2))
        );
        for (agent, name) in agents.iter_mut().zip(["one", "two"]) {
            site.done(&["node", "drain", name, "--wait"]);
            assert!(agent.wait().unwrap().success());
        }
        assert_eq!(site.done(&["node", "list"]).text(), "");
        let gone = Said::from(site.command(&["node", "drain", "one"]).output().unwrap());
        assert!(gone.code == 1 && gone.err.contains("node list"), "{}", gone.err);
        site.done(&["check"]);
    }
}

#[test]
fn an_agent_that_is_killed_leaves_its_splits_to_another_and_the_output_is_there_once() {
    for site in Site::all() {
        let text = site.put_numbers(4000);
        let ran = site.place.path("ran");
        let (mut first, mut second) = (site.agent("first", "2"), site.agent("second", "2"));
        let job = site.queue("40", &ran, "sleep 0.1;");
        site.until(|| begun(&ran).len() > 8);
        first.kill().unwrap();
        first.wait().unwrap();
        assert!(
            Said::from(site.command(&["cat", "out"]).output().unwrap()).code != 0,
            "visible before it is done"
        );
        site.done(&["job", "wait", &job, "--timeout", "120"]);
        assert_eq!(site.done(&["cat", "out"]).text(), text);
        let show = site.done(&["job", "show", &job, "--json"]).json();
        assert_eq!((show["state"].as_str(), show["splits_done"].as_u64()), (Some("done"), Some(40)));
        let mut seen = begun(&ran);
        seen.dedup();
        assert_eq!(seen, (0..40).collect::<Vec<_>>());
        site.done(&["node", "drain", "second", "--wait"]);
        assert!(second.wait().unwrap().success());
        site.done(&["gc"]);
        site.done(&["check", "--read-data"]);
    }
}

#[test]
fn what_a_killed_client_began_an_agent_ends() {
    for site in Site::all() {
        let text = site.put_numbers(4000);
        let ran = site.place.path("ran");
        let script = format!("echo $AS_SPLIT >> {}; sleep 0.1; cat", ran.display());
        let args = ["run", "--sandbox", "off", "--in", "numbers", "--out", "out", "--records", "lines"];
        let rest = ["--tries", "50", "--splits", "30", "--slots", "2", "--", "sh", "-c", &script];
        let mut client = Site::spawn(site.command(&[&args[..], &rest[..]].concat()));
        site.until(|| begun(&ran).len() > 4);
        client.kill().unwrap();
        client.wait().unwrap();
        site.done(&["node", "--allow-root", "--until-idle", "--slots", "4"]);
        assert_eq!(site.done(&["cat", "out"]).text(), text);
        assert_eq!(site.done(&["job", "show", "1", "--json"]).json()["state"].as_str(), Some("done"));
    }
}

#[test]
fn a_drained_agent_finishes_what_it_runs_and_no_more() {
    for site in Site::all() {
        let text = site.put_numbers(1000);
        let ran = site.place.path("ran");
        let mut agent = site.agent("slow", "1");
        let job = site.queue("20", &ran, "sleep 0.2;");
        site.until(|| !begun(&ran).is_empty());
        site.done(&["node", "drain", "slow", "--wait"]);
        assert!(agent.wait().unwrap().success());
        let finished = site.splits(&job, "done");
        assert!(finished > 0 && finished < 20, "{finished} of 20");
        assert_eq!((finished, site.splits(&job, "running")), (begun(&ran).len() as u64, 0));
        // No runner has the job now: it waits for the next one.
        let said = site.done(&["node", "--allow-root", "--name", "next", "--until-idle"]).text();
        assert!(said.contains(&format!("job {job}: done")), "{said}");
        assert_eq!(site.done(&["cat", "out"]).text(), text);
        assert_eq!(begun(&ran), (0..20).collect::<Vec<_>>(), "what was finished was not done again");
    }
}

#[test]
fn an_agent_and_its_programs_stand_back() {
    let site = Site::sqlite();
    site.put_numbers(1);
    let own = std::process::Command::new("nice").output().unwrap().stdout;
    let own: i32 = String::from_utf8(own).unwrap().trim().parse().unwrap();
    for (more, wanted) in [(&[][..], 10), (&["--nice", "3"], 3), (&["--nice", "0"], 0)] {
        let mut agent =
            Site::spawn(site.command(&[&["node", "--allow-root", "--name", "kind"], more].concat()));
        site.until(|| site.done(&["node", "list"]).text().contains("kind"));
        let args =
            ["run", "--detach", "--sandbox", "off", "--in", "numbers", "--out", "niceness", "--", "nice"];
        let job = site.done(&args).text().trim().to_string();
        site.done(&["job", "wait", &job, "--timeout", "60"]);
        let niceness: i32 = site.done(&["cat", "niceness"]).text().trim().parse().unwrap();
        assert_eq!(niceness, (own + wanted).min(19));
        site.done(&["node", "drain", "kind", "--wait"]);
        assert!(agent.wait().unwrap().success());
    }
}

#[test]
fn programs_of_an_agent_get_what_nobody_else_wants_if_it_is_told_so() {
    let site = Site::sqlite();
    site.put_numbers(1);
    for (more, policy, class) in [(&["--idle"][..], "5", "idle"), (&[], "0", "")] {
        let mut agent =
            Site::spawn(site.command(&[&["node", "--allow-root", "--name", "kind"], more].concat()));
        site.until(|| site.done(&["node", "list"]).text().contains("kind"));
        let says = "cut -d ' ' -f 41 /proc/self/stat; ionice";
        let args = [
            "run",
            "--detach",
            "--sandbox",
            "off",
            "--in",
            "numbers",
            "--out",
            "said",
            "--",
            "sh",
            "-c",
            says,
        ];
        let job = site.done(&args).text().trim().to_string();
        site.done(&["job", "wait", &job, "--timeout", "60"]);
        let said = site.done(&["cat", "said"]).text();
        assert!(said.starts_with(&format!("{policy}\n{class}")), "{said}");
        site.done(&["node", "drain", "kind", "--wait"]);
        assert!(agent.wait().unwrap().success());
    }
}

/// Starts an agent `one`. The returned function waits for a job, ends the agent and returns its
/// report.
fn told_by(site: &Site, mut command: std::process::Command) -> impl FnOnce(&str) -> String {
    let agent = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    site.until(|| site.done(&["node", "list"]).text().contains("one"));
    move |job| {
        site.done(&["job", "wait", job, "--timeout", "60"]);
        site.done(&["node", "drain", "one", "--wait"]);
        let said = Said::from(agent.wait_with_output().unwrap());
        assert_eq!(said.code, 0, "{}", said.text());
        said.text()
    }
}

#[test]
fn what_splits_took_is_shown_beside_what_was_to_be_expected() {
    for site in Site::all() {
        site.put_numbers(1000);
        let ran = site.place.path("ran");
        let told = |job: &str| site.done(&["job", "show", job, "--json"]).json()["attempts"].clone();
        let agent = told_by(&site, site.command(&["node", "--allow-root", "--name", "one"]));
        let job = site.queue("4", &ran, "");
        let said = agent(&job);
        let has_groups = said.contains("each in a control group of its own");
        assert!(has_groups || said.contains("without control groups: "), "{said}");
        let attempts = told(&job);
        assert_eq!(attempts.as_array().unwrap().len(), 4, "{attempts}");
        for attempt in attempts.as_array().unwrap() {
            for number in ["bytes", "seconds", "seconds_predicted"] {
                assert!(attempt[number].as_f64().unwrap() > 0.0, "{number}: {attempt}");
            }
            assert!(attempt["host"].is_string() && attempt["state"] == "done", "{attempt}");
            assert_eq!(attempt["cpu_seconds"].is_number(), has_groups, "{attempt}");
        }
        let text = site.done(&["job", "show", &job]).text();
        assert!(text.contains("together") && text.contains("; predicted: "), "{text}");
        // Without groups the usage is not counted, and nothing else differs.
        let agent =
            told_by(&site, site.command(&["node", "--allow-root", "--name", "one", "--cgroup", "off"]));
        let job = site.queue("2", &ran, "");
        let said = agent(&job);
        assert!(said.contains("without control groups: they are turned off"), "{said}");
        assert!(told(&job)[1]["seconds"].is_number() && told(&job)[1]["cpu_seconds"].is_null());
        let wrong = Said::from(
            site.command(&["node", "--allow-root", "--cgroup", "/proc/nowhere"]).output().unwrap(),
        );
        assert!(wrong.code == 1 && wrong.err.contains("--cgroup"), "{}", wrong.err);
        // A running split already has a predicted time.
        let mut agent = site.agent("one", "1");
        let job = site.queue("3", &ran, "[ $AS_SPLIT = 2 ] && sleep 60;");
        // An ended split is recorded within a second or so.
        site.until(|| told(&job)[2]["seconds_predicted"].is_number());
        let last = told(&job)[2].clone();
        assert!(last["state"] == "running" && last["seconds"].is_null(), "{last}");
        assert!(last["seconds_predicted"].as_f64().unwrap() > 0.0, "{last}");
        assert!(site.done(&["job", "show", &job]).text().contains("split 2 is running; predicted: "));
        site.done(&["job", "cancel", &job]);
        site.done(&["node", "drain", "one", "--wait"]);
        assert!(agent.wait().unwrap().success());
    }
}

/// A control group of version 2 for this test, if the machine lets one be made.
fn own_group(name: &str) -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let point = mounted.and_then(|line| line.split(' ').nth(4));
    let group = std::path::Path::new(point?).join(format!("test-{}-{name}", std::process::id()));
    std::fs::create_dir(&group).is_ok().then_some(group)
}

#[test]
fn an_agent_makes_groups_in_the_one_it_is_in_and_leaves_it_as_it_was() {
    let site = Site::sqlite();
    site.put_numbers(1);
    // An agent alone in its group makes room there. Beside a shell it works without controllers.
    for (name, script) in [("alone", "exec \"$@\""), ("beside", "\"$@\"; exit $?")] {
        let Some(group) = own_group(name) else {
            outrigger_workload::lacking!("no control group can be made here");
            return;
        };
        let agent = site.command(&["node", "--allow-root", "--name", "one"]);
        let mut command = std::process::Command::new("sh");
        let enter = format!("echo 0 > {}/cgroup.procs; {script}", group.display());
        command.args(["-c", &enter, "sh"]).arg(agent.get_program()).args(agent.get_args());
        command.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(dir) = agent.get_current_dir() {
            command.current_dir(dir);
        }
        let agent = told_by(&site, command);
        let args = ["run", "--detach", "--sandbox", "off", "--in", "numbers", "--out", "told", "--", "cat"];
        let job = site.done(&[&args[..], &["/proc/self/cgroup"]].concat()).text().trim().to_string();
        let said = agent(&job);
        assert!(said.contains("each in a control group of its own"), "{said}");
        let told = site.done(&["cat", "told"]).text();
        let below = format!("/{}/outrigger-attempts-", group.file_name().unwrap().to_string_lossy());
        assert!(told.lines().any(|line| line.starts_with("0::") && line.contains(&below)), "{told}");
        std::fs::remove_dir(&group).unwrap();
    }
}

#[test]
fn an_agent_of_another_host_is_given_up_when_its_lease_is_over() {
    let Some(site) = Site::postgres() else { return };
    let (server, schema) = site.postgres.as_ref().unwrap();
    let text = site.put_numbers(1000);
    let ran = site.place.path("ran");
    // Its lock files lie in another host's cache directory, so this host cannot see that it is
    // dead.
    let mut far =
        Site::spawn(site.command_at("far", &["node", "--allow-root", "--name", "far", "--slots", "1"]));
    site.until(|| site.done(&["node", "list"]).text().contains("far"));
    // All splits but the first wait, so the far agent cannot end the second before it is killed.
    // Its program outlives it, but not this test's directory.
    let go = site.place.path("go");
    let waits = format!(
        "until [ $AS_SPLIT = 0 -o -e {} -o ! -e {} ]; do sleep 0.02; done;",
        go.display(),
        ran.display()
    );
    let job = site.queue("6", &ran, &waits);
    site.until(|| begun(&ran).len() > 1);
    far.kill().unwrap();
    far.wait().unwrap();
    // The lease lasts, however slow this machine is.
    server.sql(&format!(
        "UPDATE {schema}.session SET lease_until = lease_until + 3600000000000 \
         WHERE id IN (SELECT session FROM {schema}.job_split WHERE state = 1)"
    ));
    std::fs::write(&go, "").unwrap();
    let mut near = site.agent("near", "2");
    site.until(|| {
        site.splits(&job, "done") + site.splits(&job, "running") == 6 && site.splits(&job, "waiting") == 0
    });
    let late = Said::from(site.command(&["job", "wait", &job, "--timeout", "1"]).output().unwrap());
    assert!(
        late.code == 1 && late.err.contains("still running"),
        "what the far one has is still its own: {}",
        late.err
    );
    server.sql(&format!(
        "UPDATE {schema}.session SET lease_until = 1, lease_secs = 0 WHERE id IN (SELECT session FROM {schema}.job_split WHERE state = 1) \
         OR role LIKE '%\"far\"%'"
    ));
    site.done(&["job", "wait", &job, "--timeout", "60"]);
    assert_eq!(site.done(&["cat", "out"]).text(), text);
    assert!(!site.done(&["node", "list"]).text().contains("far"));
    site.done(&["node", "drain", "near", "--wait"]);
    assert!(near.wait().unwrap().success());
}

#[test]
fn an_agent_outlives_a_database_that_does_not_answer_it() {
    let Some(site) = Site::postgres() else { return };
    let (server, schema) = site.postgres.as_ref().unwrap();
    let text = site.put_numbers(10);
    let mut agent = site.command(&["node", "--allow-root", "--name", "patient"]);
    let says = site.place.path("says");
    agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&says).unwrap());
    let mut agent = agent.spawn().unwrap();
    site.until(|| site.done(&["node", "list"]).text().contains("patient"));
    server.sql(&format!("ALTER TABLE {schema}.job RENAME TO job_away"));
    site.until(|| std::fs::read_to_string(&says).unwrap().contains("retrying"));
    assert!(agent.try_wait().unwrap().is_none());
    server.sql(&format!("ALTER TABLE {schema}.job_away RENAME TO job"));
    let job = site.queue("1", &site.place.path("ran"), "");
    site.done(&["job", "wait", &job, "--timeout", "60"]);
    assert_eq!(site.done(&["cat", "out"]).text(), text);
    site.done(&["node", "drain", "patient", "--wait"]);
    assert!(agent.wait().unwrap().success());
}

#[test]
fn jobs_work_over_a_shared_store_without_agents() {
    let Some(site) = Site::postgres() else { return };
    let text = site.put_numbers(3000);
    let args = ["run", "--sandbox", "off", "--in", "numbers", "--records", "lines", "--splits", "4", "--out"];
    site.done(&[&args[..], &["out", "--", "cat"]].concat());
    assert_eq!(site.done(&["cat", "out"]).text(), text);
    let fails = Said::from(site.command(&[&args[..], &["bad", "--", "false"]].concat()).output().unwrap());
    assert!(fails.code == 1 && fails.err.contains("set aside"), "{}", fails.err);
    site.done(&["job", "forget", "2"]);
    // A stream, its raw file and the output of a program.
    let said = fed(
        site.command(&[
            "run",
            "--sandbox",
            "off",
            "--pattern",
            "1W->2W",
            "--in",
            "-",
            "--to",
            "raw",
            "--out",
            "up",
            "--",
            "tr",
            "a-z",
            "A-Z",
        ]),
        b"text\n",
    );
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(site.done(&["cat", "raw", "up"]).text(), "text\nTEXT\n");
    let job = site.queue("4", &site.place.path("ran"), "");
    site.done(&["job", "wait", &job, "--timeout", "60"]);
    assert_eq!(site.done(&["jobs", "--json"]).json()["jobs"].as_array().unwrap().len(), 3);
    site.done(&["check", "--read-data"]);
}

#[test]
fn a_split_that_takes_one_agent_long_is_done_by_another_and_the_first_is_stopped() {
    for site in Site::all() {
        let text = site.put_numbers(400);
        let ran = site.place.path("ran");
        let mut agents = [site.agent("one", "1"), site.agent("two", "1")];
        // The first attempt at one of the splits never ends by itself. It ends with this test's
        // directory or its agent.
        let stuck = format!(
            "if [ $AS_SPLIT = 1 -a $AS_ATTEMPT = 1 ]; then echo $$ > {0}; while [ -e {0} ]; do sleep 0.05; done; fi;",
            site.place.path("stuck").display()
        );
        let job = site.queue("4", &ran, &stuck);
        site.done(&["job", "wait", &job, "--timeout", "120"]);
        assert_eq!(site.done(&["cat", "out"]).text(), text);
        assert_eq!(begun(&ran), [0, 1, 1, 2, 3], "no other one is run twice");
        let process = std::fs::read_to_string(site.place.path("stuck")).unwrap().trim().to_string();
        site.until(|| !Path::new("/proc").join(&process).exists());
        site.until(|| site.done(&["node", "list"]).text().lines().all(|line| line.ends_with("idle")));
        let show = site.done(&["job", "show", &job, "--json"]).json();
        assert_eq!(show["splits_done"].as_u64(), Some(4));
        for (agent, name) in agents.iter_mut().zip(["one", "two"]) {
            site.done(&["node", "drain", name, "--wait"]);
            assert!(agent.wait().unwrap().success());
        }
        site.done(&["check", "--read-data"]);
    }
}

#[test]
fn who_waits_for_a_job_runs_what_takes_an_agent_long() {
    let site = Site::sqlite();
    let text = site.put_numbers(400);
    let stuck = site.place.path("stuck");
    // The first runner of the second split gets stuck, and the first split waits for that. So two
    // runners have one split each.
    let script = format!(
        "case $AS_SPLIT$AS_ATTEMPT in 11) echo $$ > {0}; while [ -e {0} ]; do sleep 0.05; done;; \
         0?) while [ -d {1} -a ! -e {0} ]; do sleep 0.05; done;; esac; cat",
        stuck.display(),
        site.place.path("").display()
    );
    let mut agent = site.agent("other", "1");
    let args =
        ["run", "--slots", "1", "--sandbox", "off", "--in", "numbers", "--out", "out", "--records", "lines"];
    site.done(&[&args[..], &["--splits", "2", "--", "sh", "-c", &script]].concat());
    assert_eq!(site.done(&["cat", "out"]).text(), text);
    site.done(&["node", "drain", "other", "--wait"]);
    assert!(agent.wait().unwrap().success());
}

#[test]
fn an_agent_of_root_runs_nothing_as_root_unless_it_was_told_to() {
    if !rustix::process::geteuid().is_root() {
        outrigger_workload::skipped!("only an agent of root's could");
        return;
    }
    let site = Site::sqlite();
    site.put_numbers(10);
    let ran = site.place.path("ran");
    let mut agent = site.command(&["node", "--name", "careful"]).stderr(Stdio::piped()).spawn().unwrap();
    site.until(|| site.done(&["node", "list"]).text().contains("careful"));
    let job = site.queue("1", &ran, "");
    let mut said = std::io::BufReader::new(agent.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert!(line.contains("as root") && line.contains("--allow-root"), "{line}");
    assert_eq!((site.splits(&job, "waiting"), begun(&ran)), (1, Vec::new()));
    site.done(&["node", "drain", "careful", "--wait"]);
    assert!(agent.wait().unwrap().success());
    site.done(&["node", "--allow-root", "--until-idle"]);
    assert_eq!(begun(&ran), [0]);
}
