// kernels_bench: each reduction kernel beside its floor, the time to read its inputs and write its output.
//
// One row is one Google Benchmark. Every sample times both, in alternating order, so that a slow moment of the machine hits
// both; the ratio is the median of the samples' ratios. "cache": inputs and output together take half of the L2 cache.
// "memory": they take more than any cache keeps.
//
//   kernels_bench [--quick] [--target NAME] [--benchmark_filter=REGEX and other flags of Google Benchmark]

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "protocols/types.h"
#include "switch_model/kernels.h"
#include "tests/bench/kernels_floor.h"

namespace gatun {
namespace {

constexpr int kInputCounts[] = {2, 4, 8, 16};

struct Plan {
  size_t cache_bytes = 0;
  size_t memory_bytes = size_t{384} << 20;
  size_t slice_bytes = size_t{1} << 20;
  int cache_samples = 301;
  int walks = 3;  // through the memory of a row
  double sample_seconds = 1e-4;
};

// The memory all rows use. Inputs: random signs, exponents around one in every float type, any mantissa bits.
class Arena {
 public:
  explicit Arena(size_t bytes) : inputs_bytes_(bytes), bytes_(2 * bytes) {
    void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      std::perror("kernels_bench: cannot map memory");
      std::exit(1);
    }
    madvise(base, bytes_, MADV_HUGEPAGE);
    base_ = static_cast<uint8_t*>(base);
    std::mt19937_64 random(1);
    constexpr size_t kPattern = size_t{1} << 20;
    for (size_t i = 0; i < kPattern; i += 8) {
      const uint64_t word = (random() & 0x8181818181818181u) | 0x3e3e3e3e3e3e3e3eu;
      std::memcpy(base_ + i, &word, 8);
    }
    for (size_t i = kPattern; i < bytes; i += kPattern) std::memcpy(base_ + i, base_, std::min(kPattern, bytes - i));
    std::memset(output(), 0, bytes / 2);  // two inputs: a third of the whole
  }
  ~Arena() { munmap(base_, bytes_); }
  uint8_t* inputs(size_t offset) const { return base_ + offset; }
  uint8_t* output() const { return base_ + inputs_bytes_; }

 private:
  uint8_t* base_;
  size_t inputs_bytes_, bytes_;
};

struct Row {
  Type type;
  Op op;
  int inputs;
  uint32_t divisor;
  bool memory;
  std::string label() const {
    std::string text = std::string(name(type)) + "/" + name(op);
    if (op == Op::kAvg) text += "(" + std::to_string(divisor) + ")";
    return text + "/" + std::to_string(inputs) + "/" + (memory ? "memory" : "cache");
  }
};

double median(std::vector<double>& v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename F>
double seconds(int times, F f) {
  const double start = thread_seconds();
  for (int i = 0; i < times; ++i) f();
  return (thread_seconds() - start) / times;
}

// The arrays of one row: inputs, then the output, each starting 256 bytes later in its page than the one before, as packets
// do not all start alike.
struct Arrays {
  Arrays(const Row& row_, size_t total, const Arena& arena) : row(row_), bytes(total / count() / 4096 * 4096 - 8192) {
    // Outputs lie where no row has inputs, so that those stay what they are.
    for (size_t k = 0; k + 1 < count(); ++k) at.push_back(arena.inputs(k * (bytes + 4096 + 256)));
    at.push_back(arena.output() + (count() - 1) % 16 * 256);
  }
  size_t count() const { return static_cast<size_t>(row.inputs) + 1; }
  void kernel(size_t from, size_t size) const {
    const void* in[kReduceInputsMax];
    for (size_t k = 0; k + 1 < count(); ++k) in[k] = at[k] + from;
    reduce({row.type, row.op, row.inputs, in, 0, at.back() + from, false, row.divisor, size / elem_bytes(row.type)});
  }
  void floor(size_t from, size_t size) const {
    const void* in[kReduceInputsMax];
    for (size_t k = 0; k + 1 < count(); ++k) in[k] = at[k] + from;
    read_and_write(in, row.inputs, at.back() + from, size);
  }

  const Row& row;
  size_t bytes;  // of each
  std::vector<uint8_t*> at;
};

struct Samples {
  std::vector<double> kernel_s, floor_s, ratios;
  void add(double kernel, double floor) {
    kernel_s.push_back(kernel), floor_s.push_back(floor), ratios.push_back(floor / kernel);
  }
  void report(benchmark::State& state, double moved) {
    state.counters["kernel"] = moved / median(kernel_s) / 1e9;
    state.counters["floor"] = moved / median(floor_s) / 1e9;
    state.counters["ratio"] = median(ratios);
  }
};

void run_in_cache(benchmark::State& state, const Row& row, const Plan& plan, const Arena& arena) {
  const Arrays arrays(row, plan.cache_bytes, arena);
  const auto kernel = [&] { arrays.kernel(0, arrays.bytes); };
  const auto floor = [&] { arrays.floor(0, arrays.bytes); };
  floor(), kernel();
  auto times = [&](double once) { return std::max(1, static_cast<int>(plan.sample_seconds / once)); };
  const int floors = times(seconds(3, floor)), kernels = times(seconds(3, kernel));
  Samples samples;
  for (auto _ : state) {
    const bool kernel_first = samples.ratios.size() % 2;
    double k = kernel_first ? seconds(kernels, kernel) : 0;
    const double f = seconds(floors, floor);
    if (!kernel_first) k = seconds(kernels, kernel);
    samples.add(k, f);
    state.SetIterationTime(k);
  }
  samples.report(state, static_cast<double>(arrays.bytes * arrays.count()));
}

void run_from_memory(benchmark::State& state, const Row& row, const Plan& plan, const Arena& arena) {
  const Arrays arrays(row, plan.memory_bytes, arena);
  const size_t slice = plan.slice_bytes / arrays.count() / 4096 * 4096;
  Samples samples;
  for (auto _ : state) {
    double total = 0;
    for (size_t at = 0; at + 2 * slice <= arrays.bytes; at += 2 * slice) {
      const size_t kernel_at = at + (samples.ratios.size() % 2 ? 0 : slice), floor_at = 2 * at + slice - kernel_at;
      const bool kernel_first = kernel_at < floor_at;
      double k = kernel_first ? seconds(1, [&] { arrays.kernel(kernel_at, slice); }) : 0;
      const double f = seconds(1, [&] { arrays.floor(floor_at, slice); });
      if (!kernel_first) k = seconds(1, [&] { arrays.kernel(kernel_at, slice); });
      samples.add(k, f);
      total += k;
    }
    state.SetIterationTime(total);
  }
  samples.report(state, static_cast<double>(slice * arrays.count()));
}

// Prints the table row by row, as rows finish.
class Table : public benchmark::BenchmarkReporter {
 public:
  explicit Table(const std::vector<Row>& rows) : rows_(rows) {}
  bool ReportContext(const Context&) override {
    std::printf("%-7s %-8s %3s  %-6s  %11s  %11s  %6s\n", "type", "op", "n", "place", "kernel GB/s", "floor GB/s", "ratio");
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const auto& run : runs) {
      const auto found = std::find_if(rows_.begin(), rows_.end(),
                                      [&](const Row& row) { return run.run_name.function_name == row.label(); });
      if (found == rows_.end() || run.error_occurred) continue;
      const double ratio = run.counters.at("ratio");
      std::string op = name(found->op);
      if (found->op == Op::kAvg) op += "/" + std::to_string(found->divisor);
      std::printf("%-7s %-8s %3d  %-6s  %11.1f  %11.1f  %6.2f\n", name(found->type), op.c_str(), found->inputs,
                  found->memory ? "memory" : "cache", run.counters.at("kernel").value, run.counters.at("floor").value,
                  ratio);
      std::fflush(stdout);
      if (worst_label_.empty() || ratio < worst_) worst_ = ratio, worst_label_ = found->label();
    }
  }
  void Finalize() override {
    if (!worst_label_.empty()) std::printf("worst ratio: %.2f (%s)\n", worst_, worst_label_.c_str());
  }

 private:
  const std::vector<Row>& rows_;
  double worst_ = 0;
  std::string worst_label_;
};

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const bool memory : {false, true}) {
    auto add = [&](Type type, Op op, uint32_t divisor) {
      for (int n : kInputCounts) rows.push_back({type, op, n, divisor ? divisor : static_cast<uint32_t>(n), memory});
    };
    for (Type type : {Type::kF32, Type::kF64, Type::kF16, Type::kBF16, Type::kE4M3, Type::kE5M2, Type::kI8, Type::kU8,
                      Type::kI32, Type::kU32, Type::kI64, Type::kU64}) {
      add(type, Op::kSum, 1);
    }
    for (Op op : {Op::kProd, Op::kMax, Op::kMin}) add(Type::kF32, op, 1);
    add(Type::kF32, Op::kAvg, 0);  // a power of two, as the number of workers often is
    add(Type::kF32, Op::kAvg, 6);
  }
  return rows;
}

int run(int argc, char** argv) {
  Plan plan;
  const long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  plan.cache_bytes = (l2 >= (256 << 10) ? static_cast<size_t>(l2) : size_t{1} << 20) / 2;
  for (int i = 1; i < argc;) {
    int taken = 0;
    if (std::strcmp(argv[i], "--quick") == 0) {
      plan.memory_bytes = size_t{256} << 20;
      plan.cache_samples = 61, plan.walks = 1;
      taken = 1;
    } else if (std::strcmp(argv[i], "--target") == 0 && i + 1 < argc) {
      if (!force_kernel_target(argv[i + 1])) {
        const char* names[16];
        std::fprintf(stderr, "kernels_bench: this machine has no '%s'; it has:", argv[i + 1]);
        for (int k = 0, n = kernel_targets(names, 16); k < n; ++k) std::fprintf(stderr, " %s", names[k]);
        std::fprintf(stderr, "\n");
        return 2;
      }
      taken = 2;
    } else {
      ++i;
      continue;
    }
    std::copy(argv + i + taken, argv + argc, argv + i);
    argc -= taken;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;

  const Arena arena(plan.memory_bytes + (size_t{1} << 20));
  std::printf("inputs and output together: %zu KiB in cache (half of L2), %zu MiB from memory\n", plan.cache_bytes >> 10,
              plan.memory_bytes >> 20);
  const auto rows = all_rows();
  for (const Row& row : rows) {
    benchmark::RegisterBenchmark(row.label().c_str(),
                                 [&](benchmark::State& state) {
                                   row.memory ? run_from_memory(state, row, plan, arena)
                                              : run_in_cache(state, row, plan, arena);
                                 })
        ->Iterations(row.memory ? plan.walks : plan.cache_samples)
        ->UseManualTime();
  }
  Table table(rows);
  benchmark::RunSpecifiedBenchmarks(&table);
  return 0;
}

}  // namespace
}  // namespace gatun

int main(int argc, char** argv) {
  return gatun::run(argc, argv);
}
