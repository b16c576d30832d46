// Every way to the driver, tried with the shipped shim and an engine that marks the results that pass through it.
#include <dlfcn.h>

#include <catch2/catch_test_macros.hpp>
#include <sstream>

#include "test/hook/run_program.h"

using sluice::test::Outcome;
using sluice::test::Run;

namespace {

// Given by CMake: folders of this build.
const std::string kShim = SLUICE_SHIM_FILE;
const std::string kEngine = SLUICE_MARKING_ENGINE;
const std::string kDriver = SLUICE_FAKE_DRIVER;  // folder with libcuda.so.1 and libnvidia-ml.so.1
const std::string kProbes = SLUICE_PROBES;

const std::string kCuda = kDriver + "/libcuda.so.1";

std::vector<std::string> Hooked(std::vector<std::string> more = {}) {
  more.push_back("LD_PRELOAD=" + kShim);
  more.push_back("SLUICE_ENGINE=" + kEngine);
  return more;
}

std::vector<std::string> HookedWithDriver(std::vector<std::string> more = {}) {
  more.push_back("LD_LIBRARY_PATH=" + kDriver + ":" + kProbes);
  return Hooked(std::move(more));
}

Outcome Probe(const std::string& name, std::vector<std::string> arguments, const std::vector<std::string>& env) {
  arguments.insert(arguments.begin(), kProbes + "/" + name);
  return Run(arguments, env);
}

void CheckQuiet(const Outcome& outcome, const std::string& expected_out) {
  INFO("stderr: " << outcome.err);
  CHECK(outcome.status == 0);
  CHECK(outcome.out == expected_out);
  CHECK(outcome.err.empty());
}

}  // namespace

TEST_CASE("the calls of a program that links libcuda are hooked") {
  const auto plain = Probe("linked", {}, {"LD_LIBRARY_PATH=" + kDriver});
  REQUIRE(plain.status == 0);
  std::istringstream numbers(plain.out);
  int init = -1, alloc = -1, copy = -1, launch = -1;
  numbers >> init >> alloc >> copy >> launch;
  REQUIRE(init == 0);
  REQUIRE(alloc > 1000);
  const auto text = [](int a, int b, int c, int d) {
    return std::to_string(a) + " " + std::to_string(b) + " " + std::to_string(c) + " " + std::to_string(d) + "\n";
  };
  const auto marked = text(100000, 100000 + alloc, copy, 100000 + launch);  // the 32-bit copy is passed through
  CheckQuiet(Probe("linked", {}, HookedWithDriver()), marked);

  SECTION("forks") {
    CheckQuiet(Probe("linked", {"fork"}, HookedWithDriver()),
               marked + "child " + std::to_string(100000 + alloc) + "\n");
  }
  SECTION("executes another program") { CheckQuiet(Probe("linked", {"exec"}, HookedWithDriver()), marked + marked); }
  SECTION("is switched off") { CheckQuiet(Probe("linked", {}, HookedWithDriver({"SLUICE_DISABLE=1"})), plain.out); }
}

TEST_CASE("the calls of a program that opens libcuda are hooked for every flag") {
  for (const int binding : {RTLD_LAZY, RTLD_NOW}) {
    for (const int scope : {RTLD_LOCAL, RTLD_GLOBAL}) {
      for (const int more : {0, RTLD_NODELETE, RTLD_DEEPBIND, RTLD_NODELETE | RTLD_DEEPBIND}) {
        for (const std::string lookup : {"dlsym", "proc", "self", "dlsym-of-dlsym"}) {
          INFO("flags " << (binding | scope | more) << ", by " << lookup);
          const auto flags = std::to_string(binding | scope | more);
          CheckQuiet(Probe("opener", {"libcuda.so.1", flags, lookup}, HookedWithDriver()), "100007\n");
          CheckQuiet(Probe("opener", {kCuda, flags, lookup}, Hooked()), "100007\n");
        }
      }
    }
  }
}

TEST_CASE("dlvsym finds the same names as without the shim, with hooked entries") {
  const auto flags = std::to_string(RTLD_NOW | RTLD_GLOBAL);
  for (const std::string lookup : {"dlvsym", "dlvsym-default"}) {
    for (const std::string& driver : {kDriver, kDriver + "/versioned"}) {
      INFO(lookup << " " << driver);
      const auto plain = Probe("opener", {"libcuda.so.1", flags, lookup}, {"LD_LIBRARY_PATH=" + driver});
      CheckQuiet(plain, driver == kDriver ? "null\n" : "7\n");  // a name without versions has no version
      CheckQuiet(Probe("opener", {"libcuda.so.1", flags, lookup}, Hooked({"LD_LIBRARY_PATH=" + driver})),
                 driver == kDriver ? "null\n" : "100007\n");
    }
  }
}

// Of two copies, the one whose cuInit succeeds is bound.
TEST_CASE("a stub that answers an error is given up, and unloaded by the program's dlclose") {
  const std::string paths = "LD_LIBRARY_PATH=" + kDriver + "/stub:" + kDriver;
  const auto plain = Probe("copies", {"libcuda.so", "libcuda.so.1"}, {paths});
  REQUIRE(plain.out.starts_with("34\n0 "));
  const int alloc = std::stoi(plain.out.substr(5));
  const std::string hooked = "100034\n100000 " + std::to_string(100000 + alloc) + "\n";
  CheckQuiet(Probe("copies", {"libcuda.so", "libcuda.so.1"}, Hooked({paths})), hooked);
  CheckQuiet(Probe("copies", {kDriver + "/stub/libcuda.so", kCuda}, Hooked()), hooked);
}

TEST_CASE("of two copies of libcuda the first that is initialised is hooked") {
  const std::string other = kDriver + "/other/libcuda.so.1";
  const auto plain = Probe("copies", {kCuda, other}, {});
  int init = -1, alloc = -1, other_init = -1, other_alloc = -1;
  std::istringstream(plain.out) >> init >> alloc >> other_init >> other_alloc;
  REQUIRE((init == 0 && other_init == 0 && alloc != other_alloc));
  const auto line = [](int a, int b) { return std::to_string(a) + " " + std::to_string(b) + "\n"; };
  const std::string first = line(100000, 100000 + alloc), second = line(100000, 100000 + other_alloc);

  SECTION("though another was looked at before") {
    CheckQuiet(Probe("copies", {"?" + kCuda, other}, Hooked()), second);
  }
  SECTION("though another was looked at after it") {
    CheckQuiet(Probe("copies", {"?" + kCuda, "?" + other, "!"}, Hooked()), second);
    CheckQuiet(Probe("copies", {"?" + other, "?" + kCuda, "!"}, Hooked()), first);
  }
  SECTION("and work on the other is logged once") {
    const auto both = Probe("copies", {kCuda, other, other}, Hooked());
    CHECK(both.out == first + line(0, other_alloc) + line(0, other_alloc));
    CHECK(both.err == "sluice: WARN two copies of libcuda are used: the calls of '" + kCuda +
                          "' are hooked, those of '" + other + "' run without limits\n");
  }
  SECTION("and work on the other fails where errors stop") {
    const auto both = Probe("copies", {kCuda, other}, Hooked({"SLUICE_ON_ERROR=stop"}));
    CHECK(both.out == first + "802\n");
    CHECK(both.err.find("those of '" + other + "' fail (SLUICE_ON_ERROR=stop)\n") != std::string::npos);
  }
}

TEST_CASE("a libcuda that loads another one and passes calls on is hooked once") {
  const std::string front = kDriver + "/front/libcuda.so", driver = "FAKE_DRIVER=" + kCuda;
  const auto plain = Probe("copies", {front}, {driver});
  REQUIRE(plain.out.starts_with("0 "));
  CheckQuiet(Probe("copies", {front}, Hooked({driver})),
             "100000 " + std::to_string(100000 + std::stoi(plain.out.substr(2))) + "\n");
}

TEST_CASE("RTLD_DEFAULT, RTLD_NEXT and a handle of the whole program find libcuda only where it is global") {
  const auto global = std::to_string(RTLD_NOW | RTLD_GLOBAL);
  const auto local = std::to_string(RTLD_NOW | RTLD_LOCAL);
  for (const std::string lookup : {"default", "whole"}) {
    INFO(lookup);
    CheckQuiet(Probe("opener", {"libcuda.so.1", global, lookup}, HookedWithDriver()), "100007\n");
    CheckQuiet(Probe("opener", {"libcuda.so.1", local, lookup}, HookedWithDriver()), "null\n");
    // The same without the shim.
    CheckQuiet(Probe("opener", {"libcuda.so.1", local, lookup}, {"LD_LIBRARY_PATH=" + kDriver}), "null\n");
  }
  CheckQuiet(Probe("opener", {"libcuda.so.1", global, "next"}, HookedWithDriver()), "100007\n");
  CheckQuiet(Probe("opener", {"libcuda.so.1", "0", "unloaded"}, HookedWithDriver()), "null\n");
}

TEST_CASE("libcuda is found by RPATH and by RUNPATH of the program") {
  for (const std::string program : {"opener_rpath", "opener_runpath"}) {
    INFO(program);
    CheckQuiet(Probe(program, {"libcuda.so.1", std::to_string(RTLD_NOW), "dlsym"}, Hooked()), "100007\n");
  }
  // The same program without them does not find it, so the checks above are about them.
  CHECK(Probe("opener", {"libcuda.so.1", std::to_string(RTLD_NOW), "dlsym"}, Hooked()).out.starts_with("not opened"));
}

TEST_CASE("RTLD_NEXT from two libraries finds the definition behind each") {
  const auto without = Probe("next_main", {}, {"LD_LIBRARY_PATH=" + kProbes + ":" + kDriver});
  CheckQuiet(without, "2 -1 3 3\n");
  CheckQuiet(Probe("next_main", {}, HookedWithDriver()), "2 -1 100003 100003\n");
}

TEST_CASE("cuGetProcAddress, _v2 and _v2_ptsz return hooked entries for each version and flag") {
  for (const std::string& driver : {kDriver, kDriver + "/aliases"}) {
    INFO(driver);
    const auto plain = Probe("proc_address", {}, {"LD_LIBRARY_PATH=" + driver});
    const auto hooked = Probe("proc_address", {}, Hooked({"LD_LIBRARY_PATH=" + driver}));
    REQUIRE(plain.status == 0);
    CHECK(hooked.status == 0);
    CHECK(hooked.err.empty());
    std::istringstream before(plain.out), after(hooked.out);
    std::string a, b;
    int marked = 0;
    while (std::getline(before, a)) {
      REQUIRE(std::getline(after, b));
      // The same, but for 100000 where the function is one that the engine marks.
      const auto number = [](const std::string& line) { return std::stoi(line.substr(line.rfind(' ') + 1)); };
      INFO(a << "\n" << b);
      CHECK(a.substr(0, a.rfind(' ')) == b.substr(0, b.rfind(' ')));
      const int version = std::stoi(a.substr(a.find(' ', a.find(' ') + 1) + 1));
      const bool per_thread = a.find(" 2 -> ") != std::string::npos ||
                              (a.starts_with("cuGetProcAddress_v2_ptsz") && a.find(" 0 -> ") != std::string::npos);
      const bool copy_marked = a.find("cuMemcpyHtoD ") != std::string::npos && version >= 7000 && per_thread;
      const bool should = number(a) >= 0 && (a.find("cuStreamSynchronize ") != std::string::npos || copy_marked ||
                                             a.find("cuMemAlloc 99000") != std::string::npos);
      CHECK(number(b) == number(a) + (should ? 100000 : 0));
      marked += should;
    }
    CHECK(marked > 20);
  }
}

TEST_CASE("calls of Python by ctypes are hooked, by name and by path") {
  for (const std::string& library : {std::string("libcuda.so.1"), kCuda}) {
    const auto outcome =
        Run({"/usr/bin/python3", "-c",
             "import ctypes\nc = ctypes.CDLL('" + library + "')\n" +
                 "p = ctypes.c_void_p(); s = ctypes.c_int()\n"
                 "c.cuGetProcAddress_v2(b'cuInit', ctypes.byref(p), 12000, ctypes.c_uint64(0), ctypes.byref(s))\n"
                 "print(c.cuInit(5), ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(p.value)(6))"},
            HookedWithDriver());
    CheckQuiet(outcome, "100005 100006\n");
  }
}

TEST_CASE("threads may enter at the same time and call while the process ends") {
  for (int round = 0; round < 20; ++round) CheckQuiet(Probe("threads", {}, HookedWithDriver()), "16\n");
}

TEST_CASE("a library may enter in its constructor while other threads enter by dlsym") {
  for (int round = 0; round < 30; ++round) CheckQuiet(Probe("constructor_main", {}, HookedWithDriver()), "8\n");
}

TEST_CASE("an allocation by NCCL is recognised by its caller") {
  CheckQuiet(Probe("nccl_main", {}, HookedWithDriver()), "200000 marked\n");
}

TEST_CASE("PyTorch's allocator report reaches both the engine and libc10") {
  CheckQuiet(Probe("c10_main", {}, HookedWithDriver()), "78 70\n");
  CheckQuiet(Probe("c10_main", {}, HookedWithDriver({"SLUICE_DISABLE=1"})).out.starts_with("78 ") ? Outcome{0, "", ""}
                                                                                                  : Outcome{},
             "");
}

TEST_CASE("with two versions of cuDNN, each call reaches the caller's own, linked or looked up") {
  const std::string before = "9001 8001 | ", marked = "109002 108002 | 109003 108003 | ";
  CheckQuiet(Probe("cudnn_main", {}, {"LD_LIBRARY_PATH=" + kDriver + ":" + kProbes}),
             before + "9002 8002 | 9003 8003 | 9004 8004 | none\n");
  // A call from inside the library is not the application's.
  CheckQuiet(Probe("cudnn_main", {}, HookedWithDriver()), before + marked + "9004 8004 | none\n");
  CheckQuiet(Probe("cudnn_main", {}, HookedWithDriver({"SLUICE_DISABLE=1"})),
             before + "9002 8002 | 9003 8003 | 9004 8004 | none\n");
}

TEST_CASE("NVML shows the fraction of a GPU with one, and the driver's values of another") {
  CheckQuiet(Probe("nvml", {}, HookedWithDriver()),
             "1000 700 300 | 1000 0 700 300 | 7 1 | 1 self 300 | 12 12 | 1 self 30 | 1 self 300\n"
             "80000 70000 10000 | 80000 500 69500 10000 | 7 2 | 2 other 5000 self 4000 | 90 45 | 2 other 60 self 30 | "
             "2 other 5000 self 4000\n");
}

TEST_CASE("a program with a dl_iterate_phdr of its own starts, and its calls are hooked") {
  CheckQuiet(Probe("own_iterate", {}, {"LD_LIBRARY_PATH=" + kDriver}), "1 7\n");
  CheckQuiet(Probe("own_iterate", {}, HookedWithDriver()), "1 100007\n");
}

TEST_CASE("a weak reference to CUDA answers that there is no device until a driver is loaded") {
  CheckQuiet(Probe("weak", {}, Hooked()), "100 -1\n");
  CheckQuiet(Probe("weak", {}, HookedWithDriver()), "100 100007\n");
}

TEST_CASE("without libcuda, the shim loads no engine, starts no thread, opens no file and logs nothing") {
  const auto plain = Probe("quiet", {}, {});
  REQUIRE(plain.status == 0);
  auto expected = plain.out;
  expected.replace(expected.find("shim 0"), 6, "shim 1");
  CheckQuiet(Probe("quiet", {}, Hooked()), expected);
}

TEST_CASE("shells and Python run the same with the shim") {
  CheckQuiet(Run({"/bin/sh", "-c", "echo a | tr a b"}, Hooked()), "b\n");
  CheckQuiet(Run({"/bin/bash", "-c", "echo $((6*7)); (exit 3); echo $?"}, Hooked()), "42\n3\n");
  CheckQuiet(Run({"/usr/bin/python3", "-c", "import ssl, json, subprocess\nprint(subprocess.check_output(['true']))"},
                 Hooked()),
             "b''\n");
}
