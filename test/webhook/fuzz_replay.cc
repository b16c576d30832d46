// Runs a fuzz target without libFuzzer: fuzz_X ROUNDS FILE-OR-FOLDER...
// It replays every file, then ROUNDS mutations of each. The mutations are the same in every run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void Run(const std::string& s) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(s.data()), s.size()); }

std::string Mutate(std::string s, const std::vector<std::string>& all, std::mt19937& random) {
  const auto at = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t n = 1 + at(4); n > 0; --n) {
    switch (at(6)) {
      case 0:
        if (!s.empty()) s[at(s.size())] = static_cast<char>(random());
        break;
      case 1:
        s.insert(at(s.size() + 1), 1, "{}[]\":,-#&*'\n 0e"[at(16)]);
        break;
      case 2:
        if (!s.empty()) s.erase(at(s.size()), 1 + at(16));
        break;
      case 3: {
        const std::string piece = s.substr(at(s.size() + 1), at(64));
        s.insert(at(s.size() + 1), piece);
        break;
      }
      case 4: {
        const std::string& other = all[at(all.size())];
        s.insert(at(s.size() + 1), other.substr(at(other.size() + 1), at(128)));
        break;
      }
      default:
        s.resize(at(s.size() + 1));
    }
  }
  return s;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::vector<std::string> files;
  for (int i = 2; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const std::string& f : files) {
    std::ifstream in(f, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    Run(seeds.back());
  }
  std::mt19937 random(20260101);
  size_t runs = seeds.size();
  for (const std::string& seed : seeds) {
    if (seed.size() > 20000) continue;
    for (int i = std::atoi(argv[1]); i > 0; --i, ++runs) Run(Mutate(seed, seeds, random));
  }
  std::printf("%zu files, %zu runs\n", seeds.size(), runs);
  return seeds.empty() ? 1 : 0;
}
