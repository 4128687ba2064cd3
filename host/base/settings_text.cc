// What settings look like to people: help, sample file, table of values, the nearest key.
#include <algorithm>
#include <numeric>

#include "host/base/settings.h"

namespace gatun {
namespace {

// Levenshtein's distance: single characters inserted, deleted or replaced.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string flag_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

}  // namespace

std::string Settings::nearest(std::string_view key) {
  std::string plain(key.substr(0, 64));
  std::replace(plain.begin(), plain.end(), '-', '_');
  const char* best = "";
  size_t best_distance = plain.size() / 3 + 2;  // more differences than this are another word
  for (const Row& row : table()) {
    size_t distance = edit_distance(plain, row.key);
    if (distance < best_distance) {
      best = row.key;
      best_distance = distance;
    }
  }
  return best;
}

std::string Settings::help() {
  std::string out = "Settings, each as a flag, as GATUN_<KEY> in the environment, or as a line of the settings file:\n";
  for (const Row& row : table()) {
    out += "  " + padded(flag_name(row.key) + " VALUE", 24) + row.help + "\n" + std::string(26, ' ') + row.expected +
           " (default " + row.preset + ")\n";
  }
  out += "  " + padded("--config FILE", 24) +
         "the settings file, also GATUN_CONFIG; else ~/.config/gatun/gatun.toml, else\n" + std::string(26, ' ') +
         "/etc/gatun/gatun.toml\n";
  return out;
}

std::string Settings::sample_file() {
  std::string out = "# Settings of Gatun. Flags are stronger than GATUN_<KEY> variables, and those than this file.\n";
  for (const Row& row : table()) {
    out += "\n# " + std::string(row.help) + ": " + row.expected + "\n# " + row.key + " = \"" + row.preset + "\"\n";
  }
  return out;
}

std::string Settings::describe() const {
  std::string out;
  for (size_t i = 0; i < table().size(); ++i) {
    out += padded(table()[i].key, 16) + padded(origins_[i].text, 20) + origins_[i].where + "\n";
  }
  return out;
}

}  // namespace gatun
