// A saved model's weights in one file or in shards with an index.
#include "hrm/formats/safetensors_set.h"

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/torch_pickle.h"
#include "support/nested_pt.h"

namespace hrm {
namespace {

using nlohmann::json;

class SafetensorsSetTest : public testing::Test {
 protected:
  // One float tensor per name, holding `first`, `first` + 1, ...
  void shard(const std::string& file, const std::vector<std::string>& names, float first = 0) {
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < names.size(); ++i) values.push_back({first + static_cast<float>(i)});
    std::vector<SafetensorsEntry> entries;
    for (size_t i = 0; i < names.size(); ++i) entries.push_back({names[i], DType::f32, {1}, bytes_of(values[i])});
    write_safetensors(dir_ / file, entries, {{"format", "pt"}});
  }
  void bin(const std::string& file, const std::vector<std::string>& names, float first) {
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < names.size(); ++i) values.push_back({first + static_cast<float>(i)});
    std::vector<NamedTensor> entries;
    for (size_t i = 0; i < names.size(); ++i) entries.push_back({names[i], DType::f32, {1}, bytes_of(values[i])});
    write_file(dir_ / file, build_torch_state_dict(entries));
  }
  void index(const json& map) { index_text(json{{"metadata", {{"total_size", 12}}}, {"weight_map", map}}.dump()); }
  void index_text(const std::string& text) { write_file(dir_ / "model.safetensors.index.json", as_bytes(text)); }
  void refused(const std::vector<std::string>& parts) {
    expect_error([&] { SafetensorsSet set(dir_.path()); }, ExitCode::checkpoint, parts);
  }
  static float value(const SafetensorsSet& set, const std::string& name) {
    return values_of<float>(set.at(name).bytes).at(0);
  }
  TempFolder dir_;
};

TEST_F(SafetensorsSetTest, OneFile) {
  shard("model.safetensors", {"b", "a"}, 3);
  const SafetensorsSet set(dir_.path());
  EXPECT_EQ(set.names(), std::vector<std::string>({"a", "b"}));
  EXPECT_EQ(value(set, "b"), 3);
  EXPECT_EQ(value(set, "a"), 4);
  expect_error([&] { set.at("aa"); }, ExitCode::checkpoint, {"holds no tensor 'aa'", dir_.path().string()});
}

TEST_F(SafetensorsSetTest, ShardsInTheFolder) {
  shard("m-1.safetensors", {"c", "a"}, 10);
  shard("m-2.safetensors", {"b"}, 20);
  index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}, {"c", "m-1.safetensors"}});
  SafetensorsSet first(dir_.path());
  const SafetensorsSet set = std::move(first);
  EXPECT_EQ(set.names(), std::vector<std::string>({"a", "b", "c"}));
  EXPECT_EQ(value(set, "a"), 11);
  EXPECT_EQ(value(set, "b"), 20);
  EXPECT_EQ(value(set, "c"), 10);
}

TEST_F(SafetensorsSetTest, DigestSeesEveryShard) {
  const auto digest = [&](float last) {
    shard("m-1.safetensors", {"a"}, 1);
    shard("m-2.safetensors", {"b"}, last);
    index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}});
    return SafetensorsSet(dir_.path()).digest();
  };
  const std::string one = digest(2);
  EXPECT_EQ(one.size(), 32U);
  EXPECT_EQ(digest(2), one);
  EXPECT_NE(digest(3), one);
}

// The same tensors, in one file or in two.
TEST_F(SafetensorsSetTest, DigestIsOfTheTensors) {
  shard("m-1.safetensors", {"a"}, 1);
  shard("m-2.safetensors", {"b"}, 2);
  index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}});
  const std::string cut = SafetensorsSet(dir_.path()).digest();
  shard("model.safetensors", {"a", "b"}, 1);  // which goes before the shards
  EXPECT_EQ(SafetensorsSet(dir_.path()).digest(), cut);
  shard("model.safetensors", {"b", "a"}, 1);
  EXPECT_NE(SafetensorsSet(dir_.path()).digest(), cut) << "the values changed places";
  shard("model.safetensors", {"a", "c"}, 1);
  EXPECT_NE(SafetensorsSet(dir_.path()).digest(), cut) << "another name";
}

// An index beside the one file is left over, whatever it says.
TEST_F(SafetensorsSetTest, OneFileGoesBeforeShards) {
  shard("model.safetensors", {"a"});
  index({{"b", "m-1.safetensors"}});
  const SafetensorsSet set(dir_.path());
  EXPECT_EQ(set.names(), (std::vector<std::string>{"a"}));
}

TEST_F(SafetensorsSetTest, NoWeights) {
  refused({"holds no weights", "model.safetensors.index.json"});
  expect_error([&] { SafetensorsSet set(dir_ / "nowhere", ExitCode::usage); }, ExitCode::usage, {"nowhere"});
  write_file(dir_ / "pytorch_model.bin", as_bytes(std::string_view("x")));
  refused({"pytorch_model.bin: not a PyTorch file"});
}

// What stands there instead is named, with what to do.
TEST_F(SafetensorsSetTest, OtherWeights) {
  const auto only = [&](const std::string& file, const std::string& bytes, const std::vector<std::string>& parts) {
    write_file(dir_ / file, as_bytes(bytes));
    refused(parts);
    std::filesystem::remove(dir_ / file);
  };
  const std::string lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  only("model-00001-of-00002.safetensors", "x", {"holds no weights", "not the index", "model.safetensors.index.json;"});
  only("pytorch_model-00001-of-00002.bin", "x", {"not the index", "pytorch_model.bin.index.json;", "hf download"});
  only("model-Q4_K_M.gguf", "GGUF", {"it holds model-Q4_K_M.gguf: this is a GGUF file"});
  only("weights.safetensors", lfs, {"it holds weights.safetensors: this is a Git LFS pointer", "git lfs pull"});
  only("model.safetensors.gz", "\x1F\x8B", {"it holds model.safetensors.gz: this is compressed by gzip", "gunzip"});
  only("model.safetensors.incomplete", "x", {"a download has left behind", "hf download"});
  only("consolidated.00.pth", "PK\x03\x04", {"consolidated.00.pth", "names of the model's makers", "hf download"});
  only("weights.safetensors", "x", {"it holds weights.safetensors", "name it model.safetensors"});
  only("weights.pt", "PK\x03\x04", {"it holds weights.pt", "name it pytorch_model.bin"});
  write_file(dir_ / "README.md", as_bytes(std::string_view("x")));
  refused({"pytorch_model.bin.index.json is there"});
}

// What torch.save wrote: alone, in shards, and as a member of a dict.
TEST_F(SafetensorsSetTest, FilesOfTorchSave) {
  bin("m-1.bin", {"c", "a"}, 10);
  bin("m-2.bin", {"b"}, 20);
  const json map{{"a", "m-1.bin"}, {"b", "m-2.bin"}, {"c", "m-1.bin"}};
  write_file(dir_ / "pytorch_model.bin.index.json", as_bytes(json{{"weight_map", map}}.dump()));
  const SafetensorsSet cut(dir_.path());
  EXPECT_EQ(cut.names(), std::vector<std::string>({"a", "b", "c"}));
  EXPECT_EQ(value(cut, "a"), 11);
  EXPECT_EQ(value(cut, "b"), 20);
  bin("pytorch_model.bin", {"a", "b"}, 1);
  const SafetensorsSet whole(dir_.path());
  EXPECT_EQ(whole.names(), std::vector<std::string>({"a", "b"}));
  EXPECT_EQ(value(whole, "b"), 2);
  write_file(dir_ / "pytorch_model.bin", test::nested_pt(MappedFile(dir_ / "pytorch_model.bin").bytes(), "state_dict"));
  EXPECT_EQ(value(SafetensorsSet(dir_.path()), "b"), 2);
  const std::string digest = SafetensorsSet(dir_.path()).digest();
  shard("model.safetensors", {"a", "b"}, 1);  // which goes before
  EXPECT_EQ(SafetensorsSet(dir_.path()).digest(), digest) << "the same tensors";
}

TEST_F(SafetensorsSetTest, ShardsAndIndexThatDisagree) {
  shard("m-1.safetensors", {"a"});
  index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}});
  refused({"lacks the shard m-2.safetensors"});
  shard("m-2.safetensors", {"x"});
  refused({"'b' is not in m-2.safetensors"});
  shard("m-2.safetensors", {"b", "x"});
  refused({"does not list the tensor 'x' of m-2.safetensors"});
  shard("m-2.safetensors", {"b", "a"});
  refused({"holds the tensor 'a' twice, in m-1.safetensors and in m-2.safetensors"});
  shard("m-2.safetensors", {"b"});
  index({{"a", "m-2.safetensors"}, {"b", "m-1.safetensors"}});
  refused({"the tensor 'a' is not in m-2.safetensors"});
  write_file(dir_ / "m-2.safetensors", as_bytes(std::string_view("short")));
  refused({"m-2.safetensors"});
}

TEST_F(SafetensorsSetTest, IndexesThatAreNone) {
  shard("m-1.safetensors", {"a"});
  index_text("{");
  refused({"index.json", "is not valid JSON"});
  index_text("[]");
  refused({"'weight_map' is missing"});
  index_text(R"({"weight_map": ["a"]})");
  refused({"'weight_map' is missing, or no object"});
  index(json::object());
  refused({"lists no tensor"});
  index({{"a", 1}});
  refused({"'a' is in no file of this folder"});
  for (const char* outside : {"../m-1.safetensors", "/etc/passwd", "", ".."}) {
    index({{"a", outside}});
    refused({"'a' is in no file of this folder"});
  }
  index_text(R"({"weight_map": {"a": "m-1.safetensors", "a": "m-2.safetensors"}})");
  refused({"index.json"});
}

TEST(SafetensorsIndex, DamagedFiles) {
  const std::string index = R"({"metadata": {"total_size": 12}, "weight_map": {"a": "m-1.safetensors",
                                "b": "m-2.safetensors"}})";
  const auto read = [](std::span<const std::byte> bytes) {
    parse_safetensors_index(as_text(bytes), "i.json", ExitCode::checkpoint);
  };
  const std::map<std::string, std::string> shards{{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}};
  EXPECT_EQ(parse_safetensors_index(index, "i.json", ExitCode::checkpoint), shards);
  expect_truncations_fail(index, ExitCode::checkpoint, read);
  EXPECT_GT(expect_flips_are_safe(index, 2000, ExitCode::checkpoint, read), 1000);
}

}  // namespace
}  // namespace hrm
