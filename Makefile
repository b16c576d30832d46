# Thin on purpose: every target is a script, and CI runs the same ones.
.PHONY: demo test cluster-demo bench-cluster build format check clean release help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile
# make demo           build what it needs, play two tenants on the simulated GPU, show what happened
demo:
	@scripts/demo $(DEMO_FLAGS)
# make test           install, build, run every test that needs no GPU; last line "N passed, N failed"
test:
	@scripts/test $(TEST_FLAGS)
# make cluster-demo   start the local cluster, install the chart, run an annotated pod, print its log
cluster-demo:
	@scripts/optional test/cluster/demo "the local cluster (test/cluster)"
# make bench-cluster  what runs on the real control plane and is too long for make test: scale, upgrades, figures, the image from source
bench-cluster:
	@scripts/optional test/cluster/bench "the scale runs (test/cluster)"
# make build          install what is needed and build everything
build:
	@scripts/test --build-only
# make format         clang-format every source in place
format:
	@scripts/check --fix-format
# make check          formatting, layering, clang-tidy (results are cached by content)
check:
	@scripts/check
# make release        chart, manifests, image archive, changelog and checksums, in build/release
release:
	@scripts/optional scripts/release "the release build (scripts/release)"
# make clean          remove the build folders; downloads and the compiler cache stay
clean:
	@rm -rf build build-asan build-tsan
