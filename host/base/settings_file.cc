// The settings file: TOML with the table's keys at the top level. toml++ stays inside this file.
#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
#include <fcntl.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cerrno>

#include "host/base/os.h"
#include "host/base/settings.h"

namespace gatun {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

Status read_all(const std::string& path, std::string* text) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error("read the settings file " + path, errno);
  char block[4096];
  for (;;) {
    ssize_t size = ::read(*file, block, sizeof block);
    if (size == 0) return {};
    if (size < 0) return system_error("read the settings file " + path, errno);
    text->append(block, static_cast<size_t>(size));
    if (text->size() > kFileBytesMax) {
      return Status(Code::kInvalidArgument,
                    "the settings file " + path + " has more than 1 MiB; it cannot be a settings file");
    }
  }
}

// The value as the table's parsers read it; false for what no setting can be.
bool value_text(const toml::node& node, std::string* text) {
  if (auto value = node.value_exact<std::string>()) {
    *text = *value;
  } else if (auto number = node.value_exact<int64_t>()) {
    *text = std::to_string(*number);
  } else {
    return false;
  }
  return true;
}

}  // namespace

Status Settings::read_file(const std::string& path) {
  std::string text;
  if (Status status = read_all(path, &text); !status.ok()) return status;
  auto place = [&](const toml::source_region& source) { return path + ":" + std::to_string(source.begin.line); };
  toml::parse_result parsed = toml::parse(std::string_view(text));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return Status(Code::kInvalidArgument, place(error.source()) + ": " + std::string(error.description()));
  }
  for (auto&& [key, node] : parsed.table()) {
    std::string value;
    std::string name(key.str());
    if (!value_text(node, &value)) {
      for (const Row& row : table()) {
        if (name != row.key) continue;
        return Status(Code::kInvalidArgument, place(key.source()) + ": " + name +
                                                  " is neither a string nor a whole number; it must be " + row.expected);
      }
      if (node.is_table()) {
        return Status(Code::kInvalidArgument,
                      place(key.source()) + ": there is a table '" + name + "'; settings stand at the top level");
      }
    }
    if (Status status = set(name, value, Source::kFile, place(key.source())); !status.ok()) return status;
  }
  file_ = path;
  return {};
}

}  // namespace gatun
