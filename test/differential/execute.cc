// Steps as calls, and as text.
#include <cctype>
#include <cstdlib>
#include <string>

#include "machine.h"
#include "program.h"

namespace differential {
namespace {

CUresult Run(const Step& step) {
  // NOLINTBEGIN(readability-identifier-naming): the names of steps.def
  const int64_t A0 = step.a[0], A1 = step.a[1], A2 = step.a[2], A3 = step.a[3];
  const int64_t A4 = step.a[4], A5 = step.a[5], A6 = step.a[6], A7 = step.a[7];
  // NOLINTEND(readability-identifier-naming)
  (void)A0, (void)A1, (void)A2, (void)A3, (void)A4, (void)A5, (void)A6, (void)A7;
  switch (step.kind) {
#define STEP(name, expression) \
  case name:                   \
    return (expression);
#include "steps.def"
#undef STEP
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

CUresult RunAll(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    const CUresult result = Run(step);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

const char* const kText[] = {
#define STEP(name, expression) #expression,
#include "steps.def"
#undef STEP
};

}  // namespace

Peer PeerOf(const std::vector<Step>& steps) {
  Peer found = Peer::kNone;
  for (const Step& step : steps) {
    if (step.kind == kOpenBlock) return Peer::kExports;
    const bool asks = step.kind == kShareBlock || step.kind == kShareMapped || step.kind == kSharePooled ||
                      step.kind == kShareEvent || step.kind == kImportMapped;
    if (asks) found = Peer::kReads;
  }
  return found;
}

int Execute(const std::vector<Step>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    CUresult result;
    if (step.group > 0) {
      std::vector<std::function<CUresult()>> threads(kMaxThreads);
      std::vector<std::vector<Step>> lists(kMaxThreads);
      for (; i < steps.size() && steps[i].group == step.group; ++i)
        lists[static_cast<size_t>(steps[i].thread)].push_back(steps[i]);
      --i;
      for (size_t t = 0; t < lists.size(); ++t) {
        if (!lists[t].empty()) threads[t] = [&list = lists[t]] { return RunAll(list); };
      }
      result = Beside(threads);
    } else {
      result = step.kind == kEndThread ? Run(step) : On(step.thread, [&] { return Run(step); });
    }
    if (result == CUDA_SUCCESS) continue;
    Record("step %zu gave %d: %s", i, static_cast<int>(result), PrintStep(step).c_str());
    return static_cast<int>(i);
  }
  return -1;
}

std::string PrintStep(const Step& step) {
  std::string text;
  const char* from = kText[step.kind];
  for (const char* at = from; *at != '\0'; ++at) {
    const bool argument = *at == 'A' && at[1] >= '0' && at[1] <= '7' &&
                          std::isalnum(static_cast<unsigned char>(at[2])) == 0 &&
                          (at == from || std::isalnum(static_cast<unsigned char>(at[-1])) == 0);
    if (argument) {
      text += std::to_string(step.a[static_cast<size_t>(*++at - '0')]);
    } else {
      text += *at;
    }
  }
  return text;
}

std::string Print(const std::vector<Step>& steps, const std::string& title) {
  std::string text =
      "// " + title + "\n#include \"test/differential/machine.h\"\n\nusing namespace differential;\n\n" +
      "#define OK(call) if (const CUresult r = (call); r != CUDA_SUCCESS) Record(\"%d: \" #call, r)\n\n" +
      "int main() {\n";
  const Peer peer = PeerOf(steps);
  if (peer != Peer::kNone) text += std::string("  StartPeer(") + (peer == Peer::kExports ? "true" : "false") + ");\n";
  text += "  Start();\n  KeepText(true);\n";
  int group = 0, thread = -1;
  for (const Step& step : steps) {
    const std::string call = PrintStep(step);
    if (step.group != group || (group > 0 && step.thread != thread)) {
      if (group > 0) text += "      return CUDA_SUCCESS;\n    };\n";
      if (group > 0 && step.group != group) text += "    OK(Beside(steps));\n  }\n";
      if (step.group > 0 && step.group != group)
        text += "  {\n    std::vector<std::function<CUresult()>> steps(kMaxThreads);\n";
      if (step.group > 0) text += "    steps[" + std::to_string(step.thread) + "] = [] {\n";
      group = step.group;
      thread = step.thread;
    }
    if (step.group > 0) {
      text += "      OK(" + call + ");\n";
      continue;
    }
    if (step.kind == kEndThread) {
      text += "  OK(" + call + ");\n";
    } else {
      text += "  OK(On(" + std::to_string(step.thread) + ", [] { return " + call + "; }));\n";
    }
  }
  if (peer != Peer::kNone) text += "  EndPeer();\n";
  return text + "  EndThreads();\n  puts(RecordText());\n}\n";
}

}  // namespace differential
