//! The library for components, and programs that people use: over data in the store they say what
//! they say over plain files.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outrigger_active::job::records::Records;
use outrigger_active::job::spec::Spec;
use outrigger_active::pattern::Pattern::{FileToMany, ReadToFile};
use outrigger_active::plan::Splits;
use outrigger_store::meta::jobs::JobState;
use support::{Place, lines, spec};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn there(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let there = found.is_ok_and(|status| status.success());
    if !there {
        outrigger_workload::skipped!("there is no {program}");
    }
    there
}

/// Compiles an example together with the library.
fn compiled(place: &Place, example: &str) -> String {
    let (repository, out) = (repository(), place.dir.path().join(example));
    let library = repository.join("crates/active/asfile");
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&out)
        .arg(repository.join(format!("examples/active/{example}.c")))
        .arg(library.join("asfile.c"))
        .arg("-I")
        .arg(library)
        .status();
    assert!(compiled.unwrap().success());
    out.display().to_string()
}

#[test]
fn dscal_scales_every_number_once() {
    if !there("cc") {
        return;
    }
    let place = Place::new();
    let dscal = compiled(&place, "dscal");
    let numbers: String = (0..50_000).map(|number| format!("{}.5\n", number * 31 % 7919)).collect();
    place.put("numbers", numbers.as_bytes());
    let scale = lines(spec(ReadToFile, &[&dscal, "2"])).output("scaled");
    place.run(&scale, &["numbers"], Splits::Count(5)).unwrap();
    let wanted: String = (0..50_000).map(|number| format!("{}\n", number * 31 % 7919 * 2 + 1)).collect();
    assert!(place.text("scaled") == wanted);
    place.put("words", b"1\ntwo\n");
    let report = place.run(&scale, &["words"], Splits::Auto).unwrap();
    assert!(report.job.why.contains("not a number: two"), "{}", report.job.why);
}

#[test]
fn aminogen_makes_much_of_little() {
    if !there("cc") {
        return;
    }
    let place = Place::new();
    let aminogen = compiled(&place, "aminogen");
    // 44 bytes, as in the paper, for four programs.
    let peaks = "262.1 0.1\n475.2 0.1\n531.3 0.1\n588.3 .15\n\n\n\n";
    let peaks = peaks.trim_end().to_string() + "\n";
    place.put("peaks", peaks.as_bytes());
    let generate = lines(spec(ReadToFile, &[&aminogen])).output("candidates");
    let report = place.run(&generate, &["peaks"], Splits::Count(4)).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let split = place.get("candidates").unwrap();
    place.run(&generate, &["peaks"], Splits::Count(1)).unwrap();
    assert!(place.get("candidates").unwrap() == split, "the same, however it is split");
    assert!(split.len() > 1000 * peaks.len(), "{} bytes", split.len());
    // Every sequence weighs what its peak does.
    for line in String::from_utf8(split).unwrap().lines() {
        let mass: f64 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert!([262.1, 475.2, 531.3, 588.3].iter().any(|peak: &f64| (peak - mass).abs() < 0.151), "{line}");
    }
}

#[test]
fn the_library_knows_outputs_and_its_place() {
    if !there("cc") || !there("python3") {
        return;
    }
    let place = Place::new();
    place.put("in", b"a\nbb\nccc\n");
    let source = place.dir.path().join("parts.c");
    std::fs::write(
        &source,
        r#"
#include "asfile.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    char line[64];
    ASFILE *in = asopen("-", "r"), *out = asopen(NULL, "w"), *named = asopen("sizes", "w"), *free = asopen("free", "w");
    if (!in || !out || !named || !free || asopen("other", "r") || errno != ENOENT || asopen("../x", "w") || errno != EINVAL) return 2;
    if (asseek(in, 1, SEEK_SET) == 0 || errno != ESPIPE) return 3;
    while (asgets(line, sizeof line, in)) {
        int len = snprintf(line, sizeof line, "%zu\n", strlen(line) - 1);
        aswrite(line, 1, (size_t)len, named);
    }
    if (!aseof(in) || aserror(in)) return 4;
    if (asseek(named, 0, SEEK_SET) != 0 || aswrite("9", 1, 1, named) != 1) return 5;
    snprintf(line, sizeof line, "%d %d %d %d\n", as_job() > 0, (int)as_split(), (int)as_splits(), (int)as_attempt());
    aswrite(line, 1, strlen(line), out);
    aswrite(as_task_id(), 1, strlen(as_task_id()), free);
    return asclose(named) | asclose(free) | asclose(out);
}
"#,
    )
    .unwrap();
    let library = repository().join("crates/active/asfile");
    let program = place.dir.path().join("parts");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg(library.join("asfile.c"))
        .arg("-I")
        .arg(&library)
        .status();
    assert!(compiled.unwrap().success());
    let job = spec(FileToMany, &[program.to_str().unwrap()])
        .output("place")
        .output("sizes=sizes")
        .output("rest=more/");
    let report = place.run(&job, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!((place.text("place"), place.text("sizes")), ("1 0 1 1\n".into(), "9\n2\n3\n".into()));
    assert!(place.text("more/free").ends_with("-0"));

    let script = "import asfile\n\
                  with asfile.open() as lines, asfile.open(mode='w') as out, asfile.open('sizes', 'w') as sizes:\n\
                  \x20   for line in lines: sizes.write(b'%d\\n' % (len(line) - 1))\n\
                  \x20   out.write(f'{asfile.job() > 0} {asfile.split()} {asfile.splits()} {asfile.attempt()}'.encode())\n";
    let mut job = spec(FileToMany, &["python3", "-c", script]).output("place").output("sizes=sizes");
    job.env = vec![
        ("PYTHONPATH".into(), library.display().to_string()),
        ("PYTHONDONTWRITEBYTECODE".into(), "1".into()),
    ];
    let report = place.run(&job, &["in"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    assert_eq!((place.text("place"), place.text("sizes")), ("True 0 1 1".into(), "1\n2\n3\n".into()));
}

/// In each of the three languages: the last bytes of the input, and a file that is there to look
/// at; or why not.
#[test]
fn the_library_opens_further_files_and_moves_in_an_input_that_is_one() {
    let place = Place::new();
    place.put("in/a", b"first\nlast\n");
    place.put("ref/table", b"looked up\n");
    let library = repository().join("crates/active/asfile");
    let mut programs: Vec<(&str, Vec<String>, Spec)> = Vec::new();
    if there("cc") {
        let (source, program) = (place.dir.path().join("tail.c"), place.dir.path().join("tail"));
        std::fs::write(
            &source,
            r#"
#include "asfile.h"
#include <errno.h>
#include <stdio.h>
int main(int count, char **words) {
    char text[64];
    size_t len;
    ASFILE *in = asopen(NULL, "r"), *besides = asopen(words[1], "r"), *out = asopen(NULL, "w");
    if (!besides) return perror(words[1]), 2;
    if (asopen("/etc/passwd", "r") || errno != EINVAL || asopen("ref/../../x", "r") || errno != EINVAL) return 3;
    if (asopen("ref/nothing", "r") || errno != ENOENT) return 4;
    if (asseek(in, -5, SEEK_END) != 0) return perror("asseek"), 5;
    len = asread(text, 1, sizeof text, in);
    aswrite(text, 1, len, out);
    while (asgets(text, sizeof text, besides)) fputs(text, stdout);
    return count > 1 && asclose(besides) == 0 && asclose(in) == 0 ? asclose(out) : 6;
}
"#,
        )
        .unwrap();
        let mut cc = Command::new("cc");
        cc.arg("-o").arg(&program).arg(&source).arg(library.join("asfile.c")).arg("-I").arg(&library);
        assert!(cc.status().unwrap().success());
        programs.push(("Illegal seek", vec![program.display().to_string()], spec(ReadToFile, &[])));
    }
    if there("python3") {
        let script = "import asfile, sys\n\
                      besides = asfile.open(sys.argv[1])\n\
                      for wrong in '/etc/passwd', 'ref/../../x':\n\
                      \x20   try: asfile.open(wrong); sys.exit(3)\n\
                      \x20   except ValueError: pass\n\
                      own = asfile.open()\n\
                      own.seek(-5, 2)\n\
                      asfile.open(mode='w').write(own.read() + besides.read())\n";
        let mut job = spec(ReadToFile, &[]);
        job.env = vec![
            ("PYTHONPATH".into(), library.display().to_string()),
            ("PYTHONDONTWRITEBYTECODE".into(), "1".into()),
        ];
        programs.push(("seek", ["python3", "-c", script].map(String::from).to_vec(), job));
    }
    let tests = std::env::current_exe().unwrap();
    let tail = tests.ancestors().nth(2).unwrap().join("examples/asfile_tail");
    if tail.exists() {
        programs.push(("stream", vec![tail.display().to_string()], spec(ReadToFile, &[])));
    } else {
        outrigger_workload::skipped!("{} was not built (cargo build --examples)", tail.display());
    }
    let run = |job: &Spec, program: &[String], more: &[&str], with: &[&str]| {
        let program = program.iter().map(String::as_str).chain(more.iter().copied()).map(String::from);
        let job = Spec { program: program.collect(), ..job.clone() }.output("out/{name}");
        let with: Vec<String> = with.iter().map(ToString::to_string).collect();
        let id = outrigger_active::plan::submit(&place.store, &job, &["in/a".into()], &with, Splits::Auto)
            .unwrap();
        place.go(id)
    };
    for (says, program, job) in &programs {
        let report = match run(job, program, &["ref/table", "{in}"], &["ref/*"]) {
            Err(error) if error.kind() == outrigger_store::ErrorKind::Denied => {
                return outrigger_workload::skipped!("{error}");
            }
            report => report.unwrap(),
        };
        assert_eq!(report.job.state, JobState::Done, "{program:?}: {}", report.job.why);
        assert_eq!(place.text("out/a"), "last\nlooked up\n", "{program:?}");
        // Its input is a stream, unless it was asked for as a file.
        let report = run(job, program, &["ref/table"], &["ref/*"]).unwrap();
        assert_eq!(report.job.state, JobState::Failed);
        assert!(report.job.why.contains(says), "{program:?}: {}", report.job.why);
        // Without --with nothing is there, whatever lies where it is run.
        let report = run(job, program, &["ref/table"], &[]).unwrap();
        assert_eq!(report.job.state, JobState::Failed);
    }
}

#[test]
fn what_is_installed_is_found_and_a_module_comes_along_from_the_store() {
    if !there("cc") || !there("python3") {
        return;
    }
    let place = Place::new();
    let (prefix, repository) = (place.dir.path().join("usr"), repository());
    let installed = Command::new(repository.join("scripts/install-asfile.sh"))
        .arg(&prefix)
        .env_remove("DESTDIR")
        .status();
    assert!(installed.unwrap().success());
    let program = place.dir.path().join("dscal");
    let config = prefix.join("lib/pkgconfig/asfile.pc");
    let asked = Command::new("pkg-config").args(["--cflags", "--libs"]).arg(&config).output();
    let flags = match asked {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(_) => format!("-I{0}/include -L{0}/lib -lasfile", prefix.display()),
    };
    assert!(flags.contains("-lasfile"), "{flags}");
    let compiled = Command::new("cc")
        .arg(repository.join("examples/active/dscal.c"))
        .args(flags.split_whitespace())
        .arg("-o")
        .arg(&program)
        .status();
    assert!(compiled.unwrap().success());
    place.put("numbers", b"1\n2.5\n");
    let scale = spec(ReadToFile, &[program.to_str().unwrap(), "2"]).output("scaled");
    place.run(&scale, &["numbers"], Splits::Auto).unwrap();
    assert_eq!(place.text("scaled"), "2\n5\n");

    // As docs/programs.md has it.
    let module = std::fs::read(prefix.join("share/outrigger/python/asfile.py")).unwrap();
    place.put("lib/asfile.py", &module);
    let script = "import asfile; asfile.open(mode=\"w\").write(asfile.open().read().upper())";
    let mut job = spec(ReadToFile, &["python3", "-c", script]).output("upper");
    job.env = vec![("PYTHONPATH".into(), "/in/lib".into())];
    if !support::can_sandbox() {
        return;
    }
    job.sandbox = outrigger_active::job::Mode::Strict;
    place.put("words", b"a word\n");
    let with = ["lib/asfile.py".to_string()];
    let id = outrigger_active::plan::submit(&place.store, &job, &["words".to_string()], &with, Splits::Auto)
        .unwrap();
    match place.go(id) {
        Err(error) if error.kind() == outrigger_store::ErrorKind::Denied => {
            outrigger_workload::skipped!("{error}")
        }
        report => {
            let report = report.unwrap();
            assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
            assert_eq!(place.text("upper"), "A WORD\n");
        }
    }
}

#[test]
fn genomes_are_viewed_sorted_and_indexed_as_plain_files_are() {
    if !there("samtools") {
        return;
    }
    let place = Place::new();
    let mut sam = String::from("@HD\tVN:1.6\tSO:unsorted\n@SQ\tSN:one\tLN:100000\n@SQ\tSN:two\tLN:50000\n");
    for read in 0..5000_u64 {
        let (name, at) = (["one", "two"][(read % 2) as usize], 1 + read * 7919 % 49_000);
        let bases: String =
            (0..50).map(|base| b"ACGT"[((read * 31 + base * 17) % 4) as usize] as char).collect();
        sam += &format!("read{read}\t0\t{name}\t{at}\t60\t50M\t*\t0\t0\t{bases}\t{}\n", "I".repeat(50));
    }
    place.put("reads.sam", sam.as_bytes());
    let plain = place.dir.path().join("reads.sam");
    std::fs::write(&plain, &sam).unwrap();
    let run = |words: &[&str], input: &str, output: &str| {
        let job = Spec { env: vec![], ..spec(ReadToFile, words) }.output(output);
        let report = place.run(&job, &[input], Splits::Auto).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{words:?}: {}", report.job.why);
    };
    // --no-PG: the header would name each command line.
    run(&["samtools", "view", "--no-PG", "-b", "-"], "reads.sam", "reads.bam");
    run(&["samtools", "sort", "--no-PG", "-O", "bam", "-"], "reads.bam", "sorted.bam");
    run(&["samtools", "view", "--no-PG", "-h", "-"], "sorted.bam", "sorted.sam");
    run(&["samtools", "flagstat", "-"], "sorted.bam", "flags");
    run(&["samtools", "fastq", "-n", "-"], "sorted.bam", "reads.fastq");
    let index = spec(
        FileToMany,
        &["sh", "-c", "cat > in.bam && samtools index in.bam \"$AS_OUTPUT_bai\" && rm in.bam"],
    )
    .output("bai={path}.bai");
    let report = place.run(&index, &["sorted.bam"], Splits::Auto).unwrap();
    assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
    let here = |script: &str| {
        let said = Command::new("sh").args(["-ec", script]).current_dir(place.dir.path()).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        said.stdout
    };
    assert!(
        here("samtools sort --no-PG -O bam reads.sam | samtools view --no-PG -h -")
            == place.get("sorted.sam").unwrap()
    );
    assert!(here("samtools flagstat reads.sam") == place.get("flags").unwrap());
    assert!(
        here("samtools sort -O bam reads.sam | samtools fastq -n - 2>/dev/null")
            == place.get("reads.fastq").unwrap()
    );
    std::fs::write(place.dir.path().join("stored.bam"), place.get("sorted.bam").unwrap()).unwrap();
    assert!(
        here("samtools index stored.bam plain.bai; cat plain.bai") == place.get("sorted.bam.bai").unwrap()
    );
}

#[test]
fn genomes_are_merged_as_plain_files_are() {
    if !there("samtools") {
        return;
    }
    let place = Place::new();
    let mut merge = vec!["samtools", "merge", "--no-PG", "-O", "bam", "-"];
    for (name, first) in [("even", 0_u64), ("odd", 1)] {
        let mut sam = String::from("@HD\tVN:1.6\tSO:coordinate\n@SQ\tSN:one\tLN:100000\n");
        for read in (first..2000).step_by(2) {
            let bases: String =
                (0..40).map(|base| b"ACGT"[((read * 13 + base * 7) % 4) as usize] as char).collect();
            sam += &format!("read{read}\t0\tone\t{}\t60\t40M\t*\t0\t0\t{bases}\t*\n", read * 41 + 1);
        }
        let plain = place.dir.path().join(name);
        std::fs::write(plain.with_extension("sam"), sam).unwrap();
        let made = Command::new("samtools")
            .args(["view", "--no-PG", "-b", "-o"])
            .args([plain.with_extension("bam"), plain.with_extension("sam")])
            .status();
        assert!(made.unwrap().success());
        place.put(&format!("in/{name}.bam"), &std::fs::read(plain.with_extension("bam")).unwrap());
    }
    merge.push("{in}");
    let job = spec(outrigger_active::pattern::Pattern::ManyToFile, &merge).output("merged.bam");
    let id = place.submit(&job, &["in/*.bam"], Splits::Auto).unwrap();
    match place.go(id) {
        Err(error) if error.kind() == outrigger_store::ErrorKind::Denied => {
            outrigger_workload::skipped!("{error}");
            return;
        }
        report => assert_eq!(report.unwrap().job.state, JobState::Done),
    }
    let plain = Command::new("samtools")
        .args(["merge", "--no-PG", "-O", "bam", "-", "even.bam", "odd.bam"])
        .current_dir(place.dir.path())
        .output()
        .unwrap();
    assert!(plain.status.success() && plain.stdout.len() > 10_000);
    assert!(place.get("merged.bam").unwrap() == plain.stdout);
}

#[test]
fn programs_that_want_files_get_exactly_theirs() {
    let place = Place::new();
    place.put("in/a", b"first\nlast\n");
    place.put("in/b", &vec![b'x'; 3_000_000]);
    place.put("other/table", b"looked up\n");
    place.put("in.secret", b"not for it");
    let script = "tail -c 5 \"$1\"; cat \"$AS_IN/other/table\"; find $AS_IN -type f | wc -l; cat; \
                  echo > $1 2>/dev/null && echo written; exit 0";
    let job = spec(ReadToFile, &["sh", "-c", script, "sh", "{in}"]).output("out/{name}");
    let (inputs, with) = (["in/*".to_string()], ["other/*".to_string()]);
    let id = outrigger_active::plan::submit(&place.store, &job, &inputs, &with, Splits::Auto).unwrap();
    match place.go(id) {
        Err(error) if error.kind() == outrigger_store::ErrorKind::Denied => {
            outrigger_workload::skipped!("{error}");
            return;
        }
        report => assert_eq!(report.unwrap().job.state, JobState::Done),
    }
    assert_eq!(place.text("out/a"), "last\nlooked up\n3\n");
    assert_eq!(place.text("out/b"), "xxxxxlooked up\n3\n");
    // Several inputs of one program, by number.
    let both = ["sh", "-c", "head -n 1 \"$1\"; head -c 3 \"$2\"", "sh", "{in.1}", "{in.2}"];
    let job = spec(outrigger_active::pattern::Pattern::ManyToFile, &both).output("both");
    let report = place.run(&job, &["in/a", "in/b"], Splits::Auto).unwrap();
    assert_eq!((report.job.state, place.text("both")), (JobState::Done, "first\nxxx".to_string()));
}

#[test]
fn a_rust_component_says_what_the_c_one_says() {
    // Examples are built with the tests of a workspace, and lie beside them.
    let tests = std::env::current_exe().unwrap();
    let dscal = tests.ancestors().nth(2).unwrap().join("examples/asfile_dscal");
    if !dscal.exists() {
        outrigger_workload::skipped!("{} was not built (cargo build --examples)", dscal.display());
        return;
    }
    let place = Place::new();
    let numbers: String = (0..5000).map(|number| format!("{}.5\n", number * 31 % 7919)).collect();
    place.put("numbers", numbers.as_bytes());
    let dscal = dscal.display().to_string();
    place
        .run(&lines(spec(ReadToFile, &[&dscal, "2"])).output("scaled"), &["numbers"], Splits::Count(5))
        .unwrap();
    let wanted: String = (0..5000).map(|number| format!("{}\n", number * 31 % 7919 * 2 + 1)).collect();
    assert!(place.text("scaled") == wanted);
    let both = spec(FileToMany, &[&dscal, "2", "count"]).output("twice").output("count=counted");
    place.run(&both, &["numbers"], Splits::Auto).unwrap();
    assert!(place.text("twice") == wanted);
    assert_eq!(place.text("counted"), "5000 in split 0 of 1\n");
    place.put("words", b"1\ntwo\n");
    let report = place.run(&spec(ReadToFile, &[&dscal]).output("x"), &["words"], Splits::Auto).unwrap();
    assert!(report.job.why.contains("not a number: two"), "{}", report.job.why);
}

/// A sorted BAM file with its index: many reads on two references, some of them long, and some that
/// lie nowhere.
fn alignments(place: &Place, header_lines: usize) -> (Vec<u8>, Vec<u8>) {
    let mut sam =
        String::from("@HD\tVN:1.6\tSO:coordinate\n@SQ\tSN:one\tLN:400000\n@SQ\tSN:two\tLN:300000\n");
    for line in 0..header_lines {
        sam += &format!("@CO\tcomment {line}, so that the header takes more than one block\n");
    }
    let read = |name: usize, at: &str, len: usize| {
        let bases: String =
            (0..len).map(|base| "ACGT".as_bytes()[(base * 7 + name * name) % 4] as char).collect();
        let quality: String = (0..len).map(|base| (b'!' + ((base * name) % 40) as u8) as char).collect();
        format!("read{name}\t{at}\t*\t0\t0\t{bases}\t{quality}\n")
    };
    for number in 0..6000 {
        let (reference, at) =
            if number < 4000 { ("one", number * 97 + 1) } else { ("two", (number - 4000) * 140 + 1) };
        let len = if number % 500 == 7 { 90_000 } else { 100 };
        sam += &read(number, &format!("0\t{reference}\t{at}\t60\t{len}M"), len);
    }
    (6000..6400).for_each(|number| sam += &read(number, "4\t*\t0\t0\t*", 100));
    let (text, bam) = (place.dir.path().join("in.sam"), place.dir.path().join("in.bam"));
    std::fs::write(&text, sam).unwrap();
    let samtools = |args: &[&str]| {
        let made =
            Command::new("samtools").args(args).current_dir(place.dir.path()).stderr(Stdio::null()).status();
        assert!(made.unwrap().success(), "{args:?}");
    };
    samtools(&["view", "-b", "-o", "in.bam", "in.sam"]);
    samtools(&["index", "in.bam"]);
    (std::fs::read(bam).unwrap(), std::fs::read(place.dir.path().join("in.bam.bai")).unwrap())
}

#[test]
fn alignments_are_split_by_their_index_and_each_is_read_once() {
    if !there("samtools") {
        return;
    }
    for header_lines in [0, 2000] {
        let place = Place::new();
        let (bam, index) = alignments(&place, header_lines);
        let plain =
            Command::new("samtools").args(["view", "in.bam"]).current_dir(place.dir.path()).output().unwrap();
        assert_eq!(plain.stdout.iter().filter(|&&byte| byte == b'\n').count(), 6400);
        place.put("reads/in.bam", &bam);
        let view = spec(ReadToFile, &["samtools", "view", "-"]).output("out.sam");
        let view = Spec { records: Records::parse("bam").unwrap(), ..view };
        let error = place.submit(&view, &["reads/in.bam"], Splits::Count(2)).unwrap_err();
        assert!(error.to_string().contains("samtools index"), "{error}");
        place.put("reads/in.bam.bai", &index);
        for splits in [1, 2, 7, 40] {
            let report = place.run(&view, &["reads/in.bam"], Splits::Count(splits)).unwrap();
            assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
            assert!(place.get("out.sam").unwrap() == plain.stdout, "{splits} splits");
        }
        // Every split is a file of its own that samtools finds nothing wrong with, header and end
        // included.
        let check = "cat > x.bam; samtools quickcheck x.bam; samtools view -H x.bam | grep -c SN:; rm x.bam";
        let whole = spec(ReadToFile, &["sh", "-c", check]).output("checked");
        let whole = Spec { records: Records::Bam, ..whole };
        let report = place.run(&whole, &["reads/in.bam"], Splits::Count(5)).unwrap();
        assert_eq!(report.job.state, JobState::Done, "{}", report.job.why);
        assert_eq!(place.text("checked"), "2\n".repeat(5));
        // Another file's index, or none at all, is refused: no record is lost without a word.
        place.put("reads/in.bam.bai", &bam);
        let report = place.run(&view, &["reads/in.bam"], Splits::Count(2)).unwrap();
        assert!(report.job.state == JobState::Failed && report.job.why.contains("BAI"), "{}", report.job.why);
    }
}
