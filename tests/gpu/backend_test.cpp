// The CUDA backend beside the CPU's over whole models. That its own results do not depend on chunks, batches, forks and saves is shown by
// properties/state_test, which this binary runs on the device.
#include "cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cpu/cpu_backend.h"
#include "cuda/runtime/memory.h"
#include "support/loaded_model.h"

namespace tetrad {
namespace {

constexpr int kPrompt = 150;

class CudaBackendTest : public ::testing::TestWithParam<const char*> {
 protected:
  CudaBackendTest()
      : gpu(test::golden_directory(GetParam())),
        cpu_backend(cpu::make_backend(gpu.config, gpu.weights, options())),
        cpu_pool(*cpu_backend) {}
  static BackendOptions options() { return test::LoadedModel::default_options(); }

  test::LoadedModel gpu;
  std::unique_ptr<Backend> cpu_backend;
  StatePool cpu_pool;
};

TEST_P(CudaBackendTest, runs_on_the_device) { EXPECT_EQ(gpu.backend->name(), "cuda:0"); }

TEST_P(CudaBackendTest, logits_are_near_those_of_the_cpu) {
  const auto ids = test::random_ids(kPrompt, gpu.config.vocab_size, 2, gpu.config.ple_eos_token);
  SequenceState on_gpu(*gpu.pool), on_cpu(cpu_pool);
  const auto got = gpu.feed(on_gpu, ids);
  const StepRequest request{&on_cpu, ids, LogitsWanted::kAll};
  Stepper stepper(cpu_pool);
  const auto expected = stepper.run({&request, 1}).front().logits;
  ASSERT_EQ(got.size(), expected.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  RecordProperty("relative_error", std::to_string(std::sqrt(difference / size)));
  std::printf("relative error %.5f\n", std::sqrt(difference / size));
  EXPECT_LT(std::sqrt(difference / size), 0.05);
}

TEST_P(CudaBackendTest, two_runs_give_the_same_bits) {
  const auto ids = test::random_ids(kPrompt, gpu.config.vocab_size, 4);
  SequenceState first(*gpu.pool), second(*gpu.pool);
  EXPECT_EQ(gpu.feed(first, ids), gpu.feed(second, ids));
  EXPECT_EQ(first.checksums(), second.checksums());
}

TEST_P(CudaBackendTest, a_replayed_step_equals_one_launched_anew) {
  const auto prompt = test::random_ids(40, gpu.config.vocab_size, 5), ids = test::random_ids(24, gpu.config.vocab_size, 6);
  SequenceState replayed(*gpu.pool), anew(*gpu.pool);
  gpu.feed(replayed, prompt);
  gpu.feed(anew, prompt);
  const auto got = gpu.feed(replayed, ids, 1);
  cuda::set_replays(*gpu.backend, false);
  EXPECT_EQ(got, gpu.feed(anew, ids, 1));
  EXPECT_EQ(replayed.checksums(), anew.checksums());
}

TEST_P(CudaBackendTest, a_step_allocates_nothing) {
  const auto ids = test::random_ids(70, gpu.config.vocab_size, 3);
  SequenceState state(*gpu.pool), other(*gpu.pool);
  gpu.feed(state, ids);
  const std::size_t before = cuda::allocation_count();
  gpu.feed(other, ids, 9);
  gpu.feed(other, ids, 1);
  EXPECT_EQ(cuda::allocation_count(), before);
}

INSTANTIATE_TEST_SUITE_P(goldens, CudaBackendTest,
                         ::testing::Values("rand-small", "rand-heads", "variant-streams3", "variant-ratio8", "variant-ngram4",
                                           "variant-nople", "variant-fp8"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace tetrad
