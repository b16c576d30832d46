#include "image.h"

#include <cstdlib>
#include <cstring>
#include <sstream>

namespace simgpu {
namespace {

// "p2", "p2+8": a parameter's number and a byte offset inside it.
bool ParseParam(const std::string& text, int* param, uint32_t* offset) {
  if (text.size() < 2 || text[0] != 'p') return false;
  char* end = nullptr;
  *param = static_cast<int>(std::strtol(text.c_str() + 1, &end, 10));
  *offset = 0;
  if (*end == '+') *offset = static_cast<uint32_t>(std::strtoul(end + 1, &end, 10));
  return *end == '\0';
}

bool ParseTouch(std::istringstream& in, uint32_t access, SimTouchSpec* t) {
  std::string base, offset, length;
  if (!(in >> base >> offset >> length)) return false;
  t->access = access;
  if (base[0] == '*') {
    t->indirect = true;
    base.erase(0, 1);
  }
  if (base[0] == 't') {
    t->object = true;
    base[0] = 'p';
  }
  if (!ParseParam(base, &t->param, &t->param_offset)) return false;
  t->offset = std::strtoull(offset.c_str(), nullptr, 0);
  if (length[0] == 'p') {
    const auto times = length.find('*');
    uint32_t unused;
    if (!ParseParam(length.substr(0, times), &t->length_param, &unused)) return false;
    if (times != std::string::npos) t->length_scale = std::strtoull(length.c_str() + times + 1, nullptr, 0);
  } else {
    t->length = std::strtoull(length.c_str(), nullptr, 0);
  }
  return true;
}

uint64_t Seed(const std::string& name) { return HashBytes(name.data(), name.size()); }

}  // namespace

std::shared_ptr<SimImage> ParseImage(const void* data, std::string* wrong) {
  auto image = std::make_shared<SimImage>();
  static const char kFirst[] = "simgpu-module 1";
  if (std::memcmp(data, kFirst, sizeof kFirst - 1) != 0) return image;
  image->text = true;
  std::istringstream text(static_cast<const char*>(data));
  std::string line;
  SimKernelInfo* kernel = nullptr;
  for (int number = 1; std::getline(text, line); ++number) {
    line = line.substr(0, line.find('#'));
    std::istringstream in(line);
    std::string word;
    if (!(in >> word) || number == 1) continue;
    *wrong = "module image, line " + std::to_string(number) + ": '" + line + "'";
    if (word == "kernel") {
      auto k = std::make_unique<SimKernelInfo>();
      if (!(in >> k->name)) return nullptr;
      while (in >> word) {
        if (word == "params") {
          std::string list, size;
          in >> list;
          for (std::istringstream sizes(list); std::getline(sizes, size, ',');) {
            const auto bytes = static_cast<uint32_t>(std::strtoul(size.c_str(), nullptr, 10));
            if (bytes == 0) continue;
            const uint32_t align = bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
            k->bytes = (k->bytes + align - 1) / align * align;
            k->offsets.push_back(k->bytes);
            k->sizes.push_back(bytes);
            k->bytes += bytes;
          }
        } else if (word == "ns") {
          in >> k->duration;
        } else if (word == "ns_per_kib") {
          in >> k->ns_per_kib;
        } else {
          return nullptr;
        }
      }
      k->seed = Seed(k->name);
      kernel = k.get();
      image->kernels[k->name] = std::move(k);
    } else if (word == "read" || word == "write" || word == "update") {
      SimTouchSpec t;
      if (kernel == nullptr || !ParseTouch(in, word == "read" ? 1 : word == "write" ? 2 : 3, &t)) return nullptr;
      if (t.param >= static_cast<int>(kernel->sizes.size()) ||
          t.length_param >= static_cast<int>(kernel->sizes.size())) {
        return nullptr;
      }
      kernel->touches.push_back(t);
    } else if (word == "global") {
      std::string name;
      uint64_t bytes = 0;
      if (!(in >> name >> bytes) || bytes == 0) return nullptr;
      image->globals.emplace_back(name, bytes);
    } else {
      return nullptr;
    }
  }
  wrong->clear();
  return image;
}

SimKernelInfo* FindKernel(SimImage& image, const std::string& name) {
  auto it = image.kernels.find(name);
  if (it != image.kernels.end()) return it->second.get();
  if (image.text) return nullptr;
  auto k = std::make_unique<SimKernelInfo>();
  k->name = name;
  k->seed = Seed(name);
  return (image.kernels[name] = std::move(k)).get();
}

namespace {

std::vector<std::unique_ptr<CUfunc_st>>& GoneFunctions() {
  static auto& gone = *new std::vector<std::unique_ptr<CUfunc_st>>;
  return gone;
}

}  // namespace

std::unique_ptr<CUfunc_st> NewFunction() {
  auto& gone = GoneFunctions();
  if (gone.empty()) return std::make_unique<CUfunc_st>();
  std::unique_ptr<CUfunc_st> f = std::move(gone.back());
  gone.pop_back();
  *f = {};
  return f;
}

void EndFunctions(CUmodule m) {
  for (auto& [name, f] : m->functions) {
    *f = {};
    f->magic = kDead;
    GoneFunctions().push_back(std::move(f));
  }
  m->functions.clear();
}

void EndModules(CUcontext c) {
  for (CUmodule m : c->modules) {
    if (m->library != nullptr) m->library->modules.erase(c);
    EndFunctions(m);
    delete m;
  }
  c->modules.clear();
}

}  // namespace simgpu
