// Prints the findings of a doctor, one a line, and remembers whether any was bad.
#ifndef SLUICE_CLI_REPORT_H_
#define SLUICE_CLI_REPORT_H_

#include <cstdio>
#include <string>
#include <vector>

#include "cli/doctor_placement.h"

namespace sluice::cli {

class Report {
 public:
  void Ok(const std::string& what) { Line("ok  ", what, ""); }
  void Skip(const std::string& what) { Line("-   ", what, ""); }
  void Warn(const std::string& what, const std::string& fix) { Line("warn", what, fix); }
  void Bad(const std::string& what, const std::string& fix) {
    bad_ = true;
    Line("BAD ", what, fix);
  }
  void Add(const std::vector<Finding>& findings) {
    for (const Finding& f : findings) {
      if (f.kind == Finding::kOk) {
        Ok(f.what);
      } else if (f.kind == Finding::kWarn) {
        Warn(f.what, f.fix);
      } else {
        Bad(f.what, f.fix);
      }
    }
  }
  bool bad() const { return bad_; }

 private:
  static void Line(const char* mark, const std::string& what, const std::string& fix) {
    std::printf("%s  %s\n", mark, what.c_str());
    if (!fix.empty()) std::printf("      fix: %s\n", fix.c_str());
  }
  bool bad_ = false;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_REPORT_H_
