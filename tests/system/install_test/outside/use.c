/* A job of one rank needs no switch: the sum of one contribution is that contribution. */
#include <gatun/gatun.h>
#include <stdio.h>

static int fail(const char* what) {
  fprintf(stderr, "use_c: %s: %s\n", what, gatun_last_error(NULL));
  return 1;
}

int main(void) {
  const float send[3] = {1.0f, -2.0f, 0.5f};
  float recv[3] = {0.0f, 0.0f, 0.0f};
  gatun_options_t options = GATUN_OPTIONS_INIT;
  gatun_comm_t comm = NULL;
  int version = 0;
  if (gatun_version(&version) != GATUN_SUCCESS) return fail("gatun_version");
  if (gatun_comm_create(&comm, 1, 0, &options) != GATUN_SUCCESS) return fail("gatun_comm_create");
  if (gatun_allreduce(send, recv, 3, GATUN_F32, GATUN_SUM, comm) != GATUN_SUCCESS) return fail("gatun_allreduce");
  if (gatun_comm_destroy(comm) != GATUN_SUCCESS) return fail("gatun_comm_destroy");
  if (recv[0] != send[0] || recv[1] != send[1] || recv[2] != send[2]) return fail("values");
  printf("gatun %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
  return 0;
}
