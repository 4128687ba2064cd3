// Drives a fuzz target without libFuzzer: every corpus file, then mutations of them from a fixed seed, so a run repeats.
//
//   replay CORPUS_DIR [MUTATIONS]     what the tests run
//   replay --file FILE                one input, as libFuzzer saved it
//   replay --write-seeds CORPUS_DIR   writes the target's seeds

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"

// Sanitizers end the process without SIGABRT; not there in other builds.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using gatun::fuzz::Bytes;
namespace fs = std::filesystem;

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// One to eight small changes, as libFuzzer makes them: a byte, a run removed, a run of another input put in, a number.
Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : static_cast<size_t>(random() % limit); };
  static constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
  for (size_t changes = 1 + below(8); changes > 0; --changes) {
    const size_t at = below(bytes.size());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    switch (bytes.empty() ? 2 : below(5)) {
      case 0: *place = static_cast<uint8_t>(random()); break;
      case 1:
        bytes.erase(place, place + static_cast<std::ptrdiff_t>(1 + below(std::min<size_t>(bytes.size() - at, 32))));
        break;
      case 2: {
        const Bytes& other = corpus[below(corpus.size())];
        const size_t from = below(other.size()), count = below(std::min<size_t>(other.size() - from, 64) + 1);
        const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
        bytes.insert(place, first, first + static_cast<std::ptrdiff_t>(count));
        break;
      }
      case 3: *place ^= static_cast<uint8_t>(1u << below(8)); break;
      case 4: *place = kEdges[below(std::size(kEdges))]; break;
    }
  }
  if (bytes.size() > 4096) bytes.resize(4096);
  return bytes;
}

int write_seeds(const fs::path& folder) {
  fs::create_directories(folder);
  for (const auto& [name, bytes] : gatun::fuzz::seeds()) {
    std::ofstream out(folder / name, std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!out) {
      std::fprintf(stderr, "replay: cannot write %s\n", (folder / name).c_str());
      return 1;
    }
  }
  return 0;
}

Bytes running;  // what the target is being given

// The process is about to die: the input must survive it.
void save_running() {
  std::ofstream out("fuzz-failure.bin", std::ios::binary);
  out.write(reinterpret_cast<const char*>(running.data()), static_cast<std::streamsize>(running.size()));
  std::fprintf(stderr, "replay: the input is in %s\n", (fs::current_path() / "fuzz-failure.bin").c_str());
}

void run(const Bytes& bytes) {
  running = bytes;
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int replay(const fs::path& folder, long mutations) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const fs::path& file : files) corpus.push_back(read_file(file));
  for (const auto& [name, bytes] : gatun::fuzz::seeds()) {
    if (read_file(folder / name) != bytes) {
      std::fprintf(stderr, "replay: %s is not what the target makes; run with --write-seeds\n", (folder / name).c_str());
      return 1;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "replay: no inputs in %s\n", folder.c_str());
    return 1;
  }
  for (const Bytes& bytes : corpus) run(bytes);
  std::mt19937_64 random(1);
  for (long i = 0; i < mutations; ++i) run(mutate(corpus[static_cast<size_t>(random() % corpus.size())], corpus, random));
  std::printf("%zu inputs and %ld mutations\n", corpus.size(), mutations);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  std::signal(SIGABRT, [](int) { save_running(); });
  std::signal(SIGSEGV, [](int) {
    save_running();
    std::_Exit(139);
  });
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_running);
  if (argc == 3 && first == "--write-seeds") return write_seeds(argv[2]);
  if (argc == 3 && first == "--file") {
    run(read_file(argv[2]));
    return 0;
  }
  if (argc < 2 || argc > 3 || !fs::is_directory(first)) {
    std::fprintf(stderr, "usage: replay CORPUS_DIR [MUTATIONS] | --file FILE | --write-seeds CORPUS_DIR\n");
    return 2;
  }
  return replay(first, argc == 3 ? std::atol(argv[2]) : 0);
}
