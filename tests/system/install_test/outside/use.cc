// The C++ header alone, in a program that exits with an error if anything throws.
#include <gatun/gatun.hpp>

#include <cstdio>
#include <exception>
#include <vector>

int main() {
  try {
    gatun::Communicator communicator(1, 0);
    std::vector<double> values = {3.0, -0.25};
    communicator.allreduce(values.data(), values.data(), values.size(), GATUN_SUM);
    if (values != std::vector<double>{3.0, -0.25}) return 1;
    int version = 0;
    if (gatun_version(&version) != GATUN_SUCCESS) return 1;
    std::printf("gatun %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "use_cpp: %s\n", error.what());
    return 1;
  }
}
