# The front door. The builds themselves are in CMakePresets.json, the dependencies in
# scripts/bootstrap.
PROMPT ?= Who are you?
JOBS ?= $(shell nproc)

# $(call build,PRESET,TARGET): configures once, then lets ninja decide.
build = test -f build/$(1)/build.ninja || cmake --preset $(1); cmake --build build/$(1) -j $(JOBS) --target $(2)

.PHONY: run test cuda debug tsan fuzz bench format check clean

run:  ## install, build, answer PROMPT with the bundled model
	@scripts/bootstrap build
	@$(call build,release,tidemill)
	build/release/tidemill run "$(PROMPT)"

test:  ## install, build, run every test
	@scripts/bootstrap build test
	@$(call build,release,all)
	@ctest --preset release -j $(JOBS)

cuda:  ## build/cuda/tidemill with the cuda backend; needs the compiler of CUDA 13
	@scripts/bootstrap build
	@$(call build,cuda,all)

debug tsan:  ## the tests under ASan + UBSan with asserts, or under TSan
	@scripts/bootstrap build test
	@$(call build,$@,all)
	@ctest --preset $@ -j $(JOBS)

fuzz:  ## build the fuzzers (build/fuzz/*_fuzz); CONTRIBUTING.md says how to run them
	@scripts/bootstrap build fuzz
	@$(call build,fuzz,all)

bench:
	@scripts/bootstrap build
	@$(call build,release,tidemill_bench)
	build/release/tidemill_bench

format:
	@scripts/bootstrap check
	@scripts/format

check:  ## formatting, and the dependency order of src/
	@scripts/bootstrap check
	@scripts/format --check
	@scripts/check-order

clean:
	rm -rf build
