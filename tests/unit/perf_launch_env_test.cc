// Launchers recognised by their environment.
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "host/tools/perf/launch_env.h"

namespace gatun::perf {
namespace {

struct Answer {
  std::string error;
  Launch launch;
};

Answer detect(const std::map<std::string, std::string>& environment) {
  Answer answer;
  answer.error = detect_launch(
      [&environment](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      &answer.launch);
  return answer;
}

}  // namespace

TEST_CASE("detect_launch__by_hand", "[perf][launch]") {
  const Answer answer = detect({{"HOME", "/root"}});
  CHECK(answer.error.empty());
  CHECK(answer.launch.launcher.empty());
  CHECK(answer.launch.size == 1);
}

TEST_CASE("detect_launch__torchrun", "[perf][launch]") {
  const Answer answer = detect({{"RANK", "3"},
                                {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_RUN_ID", "abc"},
                                {"TORCHELASTIC_RESTART_COUNT", "0"}});
  CHECK(answer.error.empty());
  CHECK(answer.launch.launcher == "torchrun");
  CHECK(answer.launch.rank == 3);
  CHECK(answer.launch.size == 8);
  CHECK(answer.launch.job == "torchrun-abc-29500-0");
}

TEST_CASE("detect_launch__other_rank_variables_are_not_torchrun", "[perf][launch]") {
  CHECK(detect({{"RANK", "3"}, {"WORLD_SIZE", "8"}}).launch.launcher.empty());
}

TEST_CASE("detect_launch__open_mpi", "[perf][launch]") {
  const Answer answer = detect({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_NAMESPACE", "17"}});
  CHECK(answer.error.empty());
  CHECK(answer.launch.launcher == "mpirun");
  CHECK(answer.launch.size == 4);
  CHECK(answer.launch.job == "mpirun-17");
}

TEST_CASE("detect_launch__pmi", "[perf][launch]") {
  const Answer answer = detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  CHECK(answer.launch.launcher == "pmi");
  CHECK(answer.launch.rank == 1);
}

TEST_CASE("detect_launch__srun_step_but_not_batch_script", "[perf][launch]") {
  std::map<std::string, std::string> batch = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_JOB_ID", "42"}};
  CHECK(detect(batch).launch.launcher.empty());
  batch["SLURM_STEP_ID"] = "3";
  batch["SLURM_PROCID"] = "15";
  const Answer answer = detect(batch);
  CHECK(answer.launch.launcher == "srun");
  CHECK(answer.launch.rank == 15);
  CHECK(answer.launch.job == "srun-42-3");
}

TEST_CASE("detect_launch__torchrun_wins_over_srun", "[perf][launch]") {
  const Answer answer = detect({{"RANK", "1"},
                                {"WORLD_SIZE", "2"},
                                {"MASTER_ADDR", "h"},
                                {"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "1"},
                                {"SLURM_STEP_ID", "0"}});
  CHECK(answer.launch.launcher == "torchrun");
  CHECK(answer.launch.size == 2);
}

TEST_CASE("detect_launch__errors_name_the_variable", "[perf][launch]") {
  CHECK(detect({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}}).error == "PMI_RANK=x in the environment is not a whole number");
  CHECK(detect({{"PMI_RANK", "-1"}, {"PMI_SIZE", "2"}}).error.find("PMI_RANK=-1") == 0);
  CHECK(detect({{"PMI_RANK", ""}, {"PMI_SIZE", "2"}}).error.find("PMI_RANK=") == 0);
  CHECK(detect({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}).error.find("PMI_RANK=2 is not below PMI_SIZE=2") == 0);
  CHECK(detect({{"OMPI_COMM_WORLD_RANK", "2"}}).error.find("OMPI_COMM_WORLD_SIZE is not") != std::string::npos);
}

}  // namespace gatun::perf
