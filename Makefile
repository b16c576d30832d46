# Every target is a script, and CI runs the same ones.
.PHONY: help demo build test check check-fast format nightly arm64 cluster-demo bench-cluster release clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
# make demo           build the needed parts, play two tenants on the simulated GPU, show the result
demo:
	@scripts/demo $(DEMO_FLAGS)
# make build          install missing tools and libraries, build everything
build:
	@scripts/test --build-only
# make test           install, build, run every test that needs no GPU; last line "N passed, N failed"
test:
	@scripts/test $(TEST_FLAGS)
# make check          all checks of the sources; clang-tidy takes minutes, clean results are cached
check:
	@scripts/check $(CHECK_FLAGS)
# make check-fast     the checks that take seconds: those that build no tool (scripts/check --help)
check-fast:
	@scripts/check --fast
# make format         clang-format every source in place
format:
	@scripts/check --fix-format
# make nightly        sanitizers, fuzzers, clang-tidy of the whole tree; hours (NIGHTLY_FLAGS="--only fuzz" for one part)
nightly:
	@scripts/nightly $(NIGHTLY_FLAGS)
# make arm64          cross-compile the programs for arm64, run their unit tests under qemu, write an image index of both architectures
arm64:
	@scripts/cross test && scripts/cross build && scripts/test --build-only && scripts/image --built build --arm64 build-arm64 build/sluice-image.tar
# make cluster-demo   start the local cluster, install the chart, run an annotated pod, print its log
cluster-demo:
	@test/cluster/demo
# make bench-cluster  the long runs on the real control plane: scale, upgrades, figures, the image from source
bench-cluster:
	@test/cluster/bench
# make release        chart, manifests, image archive, changelog and checksums, in build/release
release:
	@scripts/release
# make clean          remove the build folders; downloads and the compiler cache stay
clean:
	@rm -rf build build-arm64 build-asan build-tsan build-fuzz build-nightly
