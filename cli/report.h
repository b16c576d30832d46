// What a doctor says, line by line; and whether any of it was bad.
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
  void Warn(const std::string& what, const std::string& mend) { Line("warn", what, mend); }
  void Bad(const std::string& what, const std::string& mend) {
    bad_ = true;
    Line("BAD ", what, mend);
  }
  void Add(const std::vector<Finding>& findings) {
    for (const Finding& f : findings) {
      if (f.kind == Finding::kOk) {
        Ok(f.what);
      } else if (f.kind == Finding::kWarn) {
        Warn(f.what, f.mend);
      } else {
        Bad(f.what, f.mend);
      }
    }
  }
  bool bad() const { return bad_; }

 private:
  static void Line(const char* mark, const std::string& what, const std::string& mend) {
    std::printf("%s  %s\n", mark, what.c_str());
    if (!mend.empty()) std::printf("      mend: %s\n", mend.c_str());
  }
  bool bad_ = false;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_REPORT_H_
