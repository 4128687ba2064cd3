#include "host/tools/paths.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace gatun {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "gatun-";

std::vector<fs::path> program_folders() {
  std::vector<fs::path> folders = {fs::path(own_path()).parent_path()};
  const char* path = std::getenv("PATH");
  const std::string text = path == nullptr ? "" : path;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    if (end > start) folders.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return folders;
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string own_path() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

std::string find_program(const std::string& name) {
  for (const fs::path& folder : program_folders()) {
    if (is_program(folder / name)) return (folder / name).string();
  }
  return "";
}

std::string find_module(const std::string& file) {
  const fs::path own = fs::path(own_path()).parent_path();
  for (const char* folder : {".", "../lib", GATUN_BIN_TO_MODULES}) {
    std::error_code error;
    const fs::path path = own / folder / file;
    if (fs::exists(path, error)) return path.string();
  }
  return "";
}

std::vector<std::string> external_subcommands() {
  std::vector<std::string> names;
  for (const fs::path& folder : program_folders()) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string file = entry->path().filename().string();
      if (file.rfind(kPrefix, 0) == 0 && is_program(entry->path())) names.push_back(file.substr(6));
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace gatun
