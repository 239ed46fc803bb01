// Training whose samples are drawn on the GPU is the training whose samples the host draws.
#include <c10/cuda/CUDAFunctions.h>

#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;

std::map<std::string, at::Tensor> train_augmented(const std::filesystem::path& dir, std::vector<std::string> more,
                                                  const std::string& augmentation_device) {
  for (const char* item : {"runtime.device=cuda", "runtime.deterministic=true", "train.steps=40"}) {
    more.push_back(item);
  }
  more.push_back("data.augmentation_device=" + augmentation_device);
  SmallRun run(dir / augmentation_device, more);
  run.trainer.start_fresh();
  run.trainer.run();
  return run.tensors();
}

TEST(AugmentationGpu, TrainsTheSameOnSamplesOfHostAndDevice) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"runtime.cuda_graphs=false", "train.micro_batch_size=4"},
      {"data.reference_semantics=false"},
      {"data.reference_semantics=false", "data.augmentation=dihedral", "train.micro_batch_size=2"},
      {"data.augmentation=none"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    const auto dir = fresh_folder("runs" + std::to_string(i));
    const auto host = train_augmented(dir, variants[i], "host"), device = train_augmented(dir, variants[i], "device");
    ASSERT_EQ(host.size(), device.size());
    for (const auto& [name, tensor] : host) EXPECT_TRUE(at::equal(tensor, device.at(name))) << i << " " << name;
  }
}

}  // namespace
}  // namespace hrm
