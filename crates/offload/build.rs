//! Compiles the CUDA kernels for the host, if the feature `grid` wants them. (For GPUs they are
//! compiled already: see `scripts/kernels.py`.)

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "grid")]
    grid();
}

#[cfg(feature = "grid")]
fn grid() {
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=OUTRIGGER_SANITIZE");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        // Nothing of the C++ library is used but headers.
        .cpp_link_stdlib(None)
        .file("kernels/host/kernels.cpp")
        .define("OUTRIGGER_HOST_GRID", None)
        .flag("-std=c++17")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        // Kernels read bytes as words, as CUDA lets them.
        .flag("-fno-strict-aliasing")
        .flag_if_supported("-Wno-sign-compare")
        .opt_level(2);
    // See scripts/sanitize.sh.
    if std::env::var_os("OUTRIGGER_SANITIZE").is_some() {
        build
            .flag("-fsanitize=address,undefined")
            .flag("-fno-sanitize-recover=all")
            .flag("-fno-omit-frame-pointer");
        println!("cargo:rustc-link-lib=asan");
        println!("cargo:rustc-link-lib=ubsan");
    }
    build.compile("outrigger_grid");
}
