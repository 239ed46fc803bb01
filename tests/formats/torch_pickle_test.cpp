#include "hrm/formats/torch_pickle.h"

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/zip.h"
#include "support/nested_pt.h"

namespace hrm {
namespace {

using nlohmann::json;

TorchArchive open(const std::string& file) {
  return TorchArchive(fixture("formats/" + file));
}

template <class T>
void expect_tensor(const TorchArchive& archive, const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                   const std::vector<T>& values) {
  SCOPED_TRACE(name);
  const NamedTensor& tensor = archive.at(name);
  EXPECT_EQ(tensor.dtype, dtype);
  EXPECT_EQ(tensor.shape, shape);
  EXPECT_EQ(values_of<T>(tensor.bytes), values);
}

// A .pt file around this pickle, with one storage '0' of 16 zero bytes.
std::vector<std::byte> archive_of(const std::string& pickle) {
  ZipWriter zip;
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/data/0", std::string(16, '\0'));
  return zip.finish();
}

TorchArchive parse_pickle(const std::string& pickle) {
  // The names and values are copies; the bytes of tensors must not be read once `bytes` is gone.
  const auto bytes = archive_of(pickle);
  return TorchArchive::parse(bytes, "x.pt");
}

// One float tensor on the storage '0': a dict {"w": tensor}.
std::string tensor_pickle(const std::string& numel, const std::string& offset, const std::string& shape,
                          const std::string& strides) {
  using namespace std::string_literals;
  return "\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"s +
         "FloatStorage\nX\x01\x00\x00\x00"s + "0X\x03\x00\x00\x00"s + "cpu" + numel + "tQ" + offset + shape + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtRs.";
}

TEST(TorchArchive, ReadsCheckpointsOfTheOfficialTrainers) {
  for (const std::string name : {"checkpoint_hrm", "checkpoint_hrm_bf16", "checkpoint_trm"}) {
    SCOPED_TRACE(name);
    const json expected = json::parse(read_text(fixture(name + "/case.json"), ExitCode::data))["keys"];
    const TorchArchive archive(fixture(name + "/step_12"));
    EXPECT_GT(expected.size(), 8u);
    EXPECT_EQ(archive.tensors().size(), expected.size());
    EXPECT_TRUE(archive.scalars().empty());
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(archive.contains(key)) << key;
      const NamedTensor& tensor = archive.at(key);
      EXPECT_EQ(tensor.shape, value[1].get<std::vector<int64_t>>()) << key;
      EXPECT_STREQ(hrm::name(tensor.dtype), value[0] == "float32" ? "F32" : "BF16") << key;
      EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()), array_bytes(tensor.dtype, tensor.shape)) << key;
      // Weights are not zero; biases may be.
      if (key.find("qkv_proj") != std::string::npos) {
        EXPECT_NE(as_text(tensor.bytes).find_first_not_of('\0'), std::string::npos) << key;
      }
    }
  }
}

class NestedFile : public testing::TestWithParam<std::string> {};

TEST_P(NestedFile, ReadsTensorsAndScalars) {
  const TorchArchive archive = open(GetParam());
  expect_tensor<float>(archive, "model.w", DType::f32, {2, 2}, {1, 2, 3, 4});
  expect_tensor<uint16_t>(archive, "model.bf16", DType::bf16, {2}, {0x3FC0, 0xC040});
  expect_tensor<uint16_t>(archive, "model.half", DType::f16, {1}, {0x3400});
  expect_tensor<uint8_t>(archive, "model.flag", DType::boolean, {3}, {1, 0, 1});
  expect_tensor<uint8_t>(archive, "model.u8", DType::u8, {2}, {9, 8});
  expect_tensor<int8_t>(archive, "model.i8", DType::i8, {1}, {-1});
  expect_tensor<int16_t>(archive, "model.i16", DType::i16, {1}, {-300});
  expect_tensor<int32_t>(archive, "model.i32", DType::i32, {1}, {1 << 20});
  expect_tensor<int64_t>(archive, "model.i64", DType::i64, {}, {-(int64_t{1} << 50)});
  expect_tensor<float>(archive, "view", DType::f32, {2, 3}, {8, 9, 10, 14, 15, 16});
  std::vector<float> transposed;
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 4; ++j) transposed.push_back(static_cast<float>(j * 6 + i));
  }
  expect_tensor<float>(archive, "transposed", DType::f32, {6, 4}, transposed);
  expect_tensor<float>(archive, "row", DType::f32, {6}, {12, 13, 14, 15, 16, 17});
  expect_tensor<int64_t>(archive, "expanded", DType::i64, {2, 3}, {7, 7, 7, 8, 8, 8});
  expect_tensor<float>(archive, "empty", DType::f32, {0, 5}, {});
  expect_tensor<double>(archive, "tied_a", DType::f64, {3}, {0, 1, 2});
  EXPECT_EQ(archive.at("tied_a").bytes.data(), archive.at("tied_b").bytes.data());
  expect_tensor<float>(archive, "optimizer.state.0.m", DType::f32, {2}, {1, 1});

  const std::map<std::string, TorchScalar> scalars{
      {"optimizer.state.0.step", int64_t{12}},
      {"optimizer.state.1.step", int64_t{1} << 40},
      {"optimizer.param_groups.0.lr", 1e-4},
      {"optimizer.param_groups.0.betas.0", 0.9},
      {"optimizer.param_groups.0.betas.1", 0.95},
      {"optimizer.param_groups.0.name", std::string("all")},
      {"optimizer.param_groups.0.amsgrad", false},
      {"negative", int64_t{-5}},
      {"big", -(int64_t{1} << 62)},
      {"size.0", int64_t{3}},
      {"size.1", int64_t{4}},
  };
  EXPECT_EQ(archive.scalars(), scalars);
}

INSTANTIATE_TEST_SUITE_P(Protocols, NestedFile, testing::Values("nested.pt", "nested_protocol4.pt"));

TEST(TorchArchive, ReadsModuleStates) {
  const TorchArchive archive = open("module_state.pt");
  std::vector<std::string> names;
  for (const auto& tensor : archive.tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                             "1.running_var", "1.num_batches_tracked"}));
  expect_tensor<float>(archive, "1.running_var", DType::f32, {2}, {1, 1});
}

// Members of the outermost dict that hold more than a value, and the one of them that is the model.
TEST(TorchArchive, StateDictsInsideOtherThings) {
  const std::vector<float> values{1, 2};
  const auto flat = build_torch_state_dict({{"model.w", DType::f32, {2}, bytes_of(values)}});
  const TorchArchive alone = TorchArchive::parse(flat, "x.pt");
  EXPECT_TRUE(alone.containers().empty());
  ASSERT_EQ(state_dict_of(alone, "x.pt", ExitCode::data).size(), 1U);
  EXPECT_EQ(state_dict_of(alone, "x.pt", ExitCode::data)[0].name, "model.w");
  for (const std::string member : {"model", "module", "state_dict", "model_state_dict", "model_state", "other"}) {
    const auto bytes = test::nested_pt(flat, member);
    const TorchArchive archive = TorchArchive::parse(bytes, "x.pt");
    EXPECT_EQ(archive.containers(), (std::vector<std::string>{member, "optimizer"}));
    const std::vector<NamedTensor> tensors = state_dict_of(archive, "x.pt", ExitCode::data);
    if (member == "other") {
      EXPECT_EQ(tensors.size(), 2U) << "which of them is the model is not known";
      continue;
    }
    ASSERT_EQ(tensors.size(), 1U) << member;
    EXPECT_EQ(tensors[0].name, "model.w");
    EXPECT_EQ(values_of<float>(tensors[0].bytes), values);
  }
  const auto both = test::nested_pt(test::nested_pt(flat, "a"), "b");
  EXPECT_EQ(TorchArchive::parse(both, "x.pt").containers(), (std::vector<std::string>{"b", "optimizer"}));
  using namespace std::string_literals;
  const std::string text = "\x80\x02}X\x05\0\0\0model}sX\x06\0\0\0module}s."s;
  const auto two = archive_of(text);
  const TorchArchive ambiguous = TorchArchive::parse(two, "x.pt");
  expect_error([&] { state_dict_of(ambiguous, "x.pt", ExitCode::data); }, ExitCode::data,
               {"x.pt: both 'model' and 'module'"});
}

TEST(TorchArchive, ReadsTorchScript) {
  const TorchArchive archive = open("script.pt");
  expect_tensor<float>(archive, "inner.w", DType::f32, {3}, {1, 2, 3});
  expect_tensor<int64_t>(archive, "second.steps", DType::i64, {}, {41});
  expect_tensor<float>(archive, "inner.norm.weight", DType::f32, {2}, {1, 1});
  EXPECT_EQ(archive.at("head.weight").shape, (std::vector<int64_t>{3, 2}));
  EXPECT_FALSE(archive.contains("head.bias"));
  EXPECT_EQ(archive.scalars().at("inner.count"), TorchScalar(int64_t{3}));
  EXPECT_EQ(archive.scalars().at("inner.rate"), TorchScalar(0.5));
  EXPECT_EQ(archive.scalars().at("inner.label"), TorchScalar(std::string("inner")));
  EXPECT_EQ(archive.scalars().at("inner.ints.1"), TorchScalar(int64_t{5}));
  EXPECT_EQ(archive.scalars().at("inner.table.k"), TorchScalar(1.5));
  EXPECT_EQ(archive.scalars().at("head.training"), TorchScalar(true));
}

TEST(TorchArchive, ReadsOutputArchivesOfCpp) {
  const TorchArchive module = open("cpp_module.pt");
  expect_tensor<uint16_t>(module, "z", DType::bf16, {2}, {0x3F00, 0x3F00});
  expect_tensor<float>(module, "sub.w", DType::f32, {2, 2}, {1, 1, 1, 1});
  expect_tensor<int64_t>(module, "sub.b", DType::i64, {3}, {0, 1, 2});
  EXPECT_EQ(module.at("lin.weight").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(module.tensors().size(), 5u);

  const TorchArchive archive = open("cpp_archive.pt");
  expect_tensor<int64_t>(archive, "x", DType::i64, {4}, {0, 1, 2, 3});
  expect_tensor<double>(archive, "nested.y", DType::f64, {2}, {1, 1});
  EXPECT_EQ(archive.scalars().at("count"), TorchScalar(int64_t{5}));
  EXPECT_EQ(archive.scalars().at("label"), TorchScalar(std::string("hi")));
}

TEST(TorchArchive, RefusesEverythingElseByName) {
  const auto code = ExitCode::checkpoint;
  expect_error([] { open("os_system.pt"); }, code, {"os_system.pt", "refuses 'posix.system'", "only tensors"});
  expect_error([] { open("reduce.pt"); }, code, {"reduce.pt", "refuses 'posix.system'"});
  EXPECT_FALSE(std::filesystem::exists("/tmp/hrm_pickle_was_executed"));
  expect_error([] { open("whole_module.pt"); }, code, {"refuses 'torch.nn.modules.linear.Linear'"});
  expect_error([] { open("float8.pt"); }, code, {"refuses 'torch._utils._rebuild_tensor_v3'"});
  expect_error([] { open("legacy.pt"); }, code, {"legacy.pt", "old format", "torch.save"});
  expect_error([] { open("no_crc.pt"); }, code, {"no_crc.pt", "without CRC-32"});
  expect_error([] { open("f4.npy"); }, code, {"not a PyTorch file"});
  expect_error([] { open("zip64.zip"); }, code, {"not a PyTorch file", "a/data.pkl"});
  expect_error([] { open("missing.pt"); }, code, {"missing.pt", "does not exist"});
  expect_error([] { TorchArchive archive(fixture("formats/os_system.pt"), ExitCode::data); }, ExitCode::data, {});
}

TEST(TorchArchive, RefusesPickleInstructionsOfOtherFiles) {
  const auto refused = [](const std::string& pickle, const std::string& name) {
    SCOPED_TRACE(name);
    expect_error([&] { parse_pickle(pickle); }, ExitCode::checkpoint, {"x.pt", "refuses '" + name});
  };
  refused(
      "\x80\x02"
      "cbuiltins\neval\n)R.",
      "builtins.eval'");
  refused(
      "\x80\x02"
      "ctorch\nload\n)R.",
      "torch.load'");
  refused(
      "\x80\x02"
      "(ios\nsystem\n.",
      "os.system'");                                                 // INST
  refused("\x80\x04\x8c\x02os\x8c\x06system\x93)R.", "os.system'");  // STACK_GLOBAL
  refused(
      "\x80\x02"
      "c__torch__\nModule\n)R.",
      "__torch__.Module()'");  // called, not made
  refused(
      "\x80\x02"
      "ctorch\nFloatStorage\n)R.",
      "torch.FloatStorage()'");
  refused(
      "\x80\x02"
      "ccollections\nOrderedDict\n)\x81.",
      "new collections.OrderedDict'");
  refused("\x80\x02\x82\x01.", "pickle instruction 0x82'");  // EXT1
  refused("\x80\x02P0\n.", "pickle instruction 0x50'");      // PERSID
}

TEST(TorchArchive, RefusesMalformedPickles) {
  using namespace std::string_literals;
  const auto bad = [](const std::string& pickle, const std::string& part) {
    SCOPED_TRACE(part);
    expect_error([&] { parse_pickle(pickle); }, ExitCode::checkpoint, {"x.pt", part});
  };
  bad("", "ends too early");
  bad("\x80\x02}", "ends too early");
  bad("\x80\x01}.", "protocol 1");
  bad("\x80\x02.", "a value is missing");
  bad("\x80\x02}}.", "left over");
  bad("\x80\x02}(.", "a value is missing");
  bad("\x80\x02}t.", "mark is missing");
  bad("\x80\x02}(s.", "a value is missing");  // would take values from below the mark
  bad("\x80\x02h\x05.", "memo entry");
  bad("\x80\x02}(Nu.", "no value");
  bad("\x80\x02}Na.", "not a list");
  bad("\x80\x02]NNs.", "not a dict");
  bad("\x80\x02X\xff\xff\xff\xff"
      "abc.",
      "ends too early");
  bad("\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
      "abc.",
      "ends too early");
  bad("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s, "more than 64 bits");
  bad("\x80\x02}}Ns.", "neither text nor an integer");
  bad("\x80\x02"
      "ctorch\nFloatStorage\n.",
      "refuses 'torch.FloatStorage' as the value");
  bad("\x80\x02)Q.", "not a storage");
  bad("\x80\x02"
      "ctorch._utils\n_rebuild_tensor_v2\n)R.",
      "without a storage");
  bad("\x80\x02"
      "ctorch._utils\n_rebuild_parameter\n)R.",
      "without a tensor");
  bad("\x80\x02"
      "ctorch\nSize\n)R.",
      "without items");
  bad("\x80\x02Nb.", "a value is missing");
  bad("\x80\x02NNb.", "a state for something that has none");
}

TEST(TorchArchive, ChecksTensorsAgainstTheirStorage) {
  using namespace std::string_literals;
  // BININT1 numbers and tuples of them.
  const auto number = [](int value) { return "K"s + static_cast<char>(value); };
  const auto tuple = [&](const std::vector<int>& values) {
    std::string text = "(";
    for (const int value : values) text += number(value);
    return text + "t";
  };
  const auto shape_of = [&](int numel, int offset, const std::vector<int>& shape, const std::vector<int>& strides) {
    return parse_pickle(tensor_pickle(number(numel), number(offset), tuple(shape), tuple(strides))).at("w").shape;
  };
  const auto bad = [&](int numel, int offset, const std::vector<int>& shape, const std::vector<int>& strides,
                       const std::string& part) {
    expect_error([&] { shape_of(numel, offset, shape, strides); }, ExitCode::checkpoint, {"x.pt", part});
  };
  EXPECT_EQ(shape_of(4, 0, {2, 2}, {2, 1}), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(shape_of(4, 3, {1, 1}, {200, 99}), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(shape_of(4, 2, {2, 200}, {1, 0}), (std::vector<int64_t>{2, 200}));
  EXPECT_EQ(shape_of(4, 99, {0, 7}, {7, 1}), (std::vector<int64_t>{0, 7}));
  bad(5, 0, {4}, {1}, "5 elements");
  bad(3, 0, {3}, {1}, "3 elements");
  bad(4, 1, {4}, {1}, "reaches beyond its storage");
  bad(4, 0, {2, 2}, {3, 1}, "reaches beyond its storage");
  bad(4, 4, {}, {}, "reaches beyond its storage");
  bad(4, 0, {4}, {}, "more sizes than strides");

  const std::string huge = "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"s;  // 2^63 - 1
  const auto with = [&](const std::string& numel, const std::string& offset, const std::string& size,
                        const std::string& stride) {
    return [=] { parse_pickle(tensor_pickle(numel, offset, "(" + size + "t", "(" + stride + "t")); };
  };
  expect_error(with(huge, number(0), number(1), number(1)), ExitCode::checkpoint, {"elements of F32"});
  expect_error(with(number(4), huge, number(2), number(1)), ExitCode::checkpoint, {"reaches beyond"});
  expect_error(with(number(4), huge, number(1), number(1)), ExitCode::checkpoint, {"reaches beyond"});
  expect_error(with(number(4), number(0), number(3), huge), ExitCode::checkpoint, {"reaches beyond"});
  expect_error(with(number(4), number(0), huge, number(1)), ExitCode::checkpoint, {"too large"});
  EXPECT_NO_THROW(with(number(4), number(3), number(1), huge)());
  // 4 GiB from 16 bytes.
  expect_error(with(number(4), number(0), "J\x00\x00\x00\x40"s, number(0)), ExitCode::checkpoint, {"expanded"});
}

TEST(TorchArchive, HostileContainersEnd) {
  using namespace std::string_literals;
  // A list that holds itself.
  expect_error(
      [] {
        parse_pickle(
            "\x80\x02]q\x00h\x00"
            "a."s);
      },
      ExitCode::checkpoint, {"too deeply or too often"});
  // 2^40 paths through forty shared lists.
  std::string bomb = "\x80\x02]q\x00\x30"s;
  for (int i = 0; i < 40; ++i) {
    const std::string last(1, static_cast<char>(i)), next(1, static_cast<char>(i + 1));
    bomb += "]q" + next + "(h" + last + "h" + last + "e0";
  }
  bomb += "h"s + static_cast<char>(40) + ".";
  expect_error([&] { parse_pickle(bomb); }, ExitCode::checkpoint, {"too deeply or too often"});
  // One tensor under a name of 1,000 characters, 70,000 times: 340 KB that would become 140 MB of names.
  std::string names = "\x80\x02}X\xe8\x03\x00\x00"s + std::string(1000, 'n') + "]("s;
  for (int i = 0; i < 70000; ++i) names += "K\x01"s;
  expect_error([&] { parse_pickle(names + "es."); }, ExitCode::checkpoint, {"the names of the values are too long"});
  // Marks and memo entries take more memory than the byte that makes them.
  expect_error([&] { parse_pickle("\x80\x02" + std::string(2000, '(')); }, ExitCode::checkpoint, {"nest too deeply"});
  expect_error([&] { parse_pickle("\x80\x04N" + std::string((2 << 20) + 1, '\x94')); }, ExitCode::checkpoint,
               {"more than 2097152 memo entries"});
  expect_error([&] { parse_pickle("\x80\x04" + std::string((2 << 20) + 1, 'N')); }, ExitCode::checkpoint,
               {"more than 2097152 values"});
  expect_error([&] { parse_pickle(std::string((size_t{32} << 20) + 1, 'N')); }, ExitCode::checkpoint,
               {"32.0 MiB is too large"});
  // A text of 1 MiB under a thousand names.
  std::string list = "\x80\x02](X\x00\x00\x10\x00"s + std::string(1 << 20, 'x') + "q\x00"s;
  for (int i = 0; i < 1000; ++i) list += "h\x00"s;
  expect_error([&] { parse_pickle(list + "e."); }, ExitCode::checkpoint, {"too long"});
}

TEST(TorchArchive, TwoValuesOfOneNameAreRefused) {
  using namespace std::string_literals;
  const std::string one =
      "X\x01\x00\x00\x00"
      "1"s;
  expect_error([&] { parse_pickle("\x80\x02}(" + one + "K\x05K\x01K\x06u."); }, ExitCode::checkpoint,
               {"two values are named '1'"});
}

TEST(TorchArchive, BigEndianFilesAreRefused) {
  ZipWriter zip;
  zip.add("a/data.pkl", "\x80\x02}.");
  zip.add("a/byteorder", "big");
  const auto bytes = zip.finish();
  expect_error([&] { TorchArchive::parse(bytes, "x.pt"); }, ExitCode::checkpoint, {"x.pt", "'big'", "little-endian"});
}

TEST(TorchArchive, MissingTensorsAreNamed) {
  const TorchArchive archive = open("module_state.pt");
  expect_error([&] { archive.at("0.weigth"); }, ExitCode::checkpoint,
               {"module_state.pt", "'0.weigth'", "did you mean '0.weight'"});
}

TEST(TorchArchive, AMovedArchiveKeepsItsTensors) {
  TorchArchive archive = open("nested.pt");
  const TorchArchive moved = std::move(archive);
  expect_tensor<int64_t>(moved, "expanded", DType::i64, {2, 3}, {7, 7, 7, 8, 8, 8});
  expect_tensor<float>(moved, "model.w", DType::f32, {2, 2}, {1, 2, 3, 4});
}

TEST(TorchWriter, RoundTripOfEveryType) {
  const std::string data(48, '\1');
  std::vector<NamedTensor> entries;
  for (const DType dtype : {DType::u8, DType::i8, DType::i16, DType::i32, DType::i64, DType::f16, DType::bf16,
                            DType::f32, DType::f64, DType::boolean}) {
    entries.push_back({cat("model.", name(dtype)), dtype, {2, 3}, as_bytes(data).first(6 * item_size(dtype))});
  }
  entries.push_back({"scalar", DType::f32, {}, as_bytes(data).first(4)});
  entries.push_back({"empty", DType::f32, {0, 300}, {}});
  entries.push_back({"wide", DType::u8, {1, 48}, as_bytes(data)});
  const auto bytes = build_torch_state_dict(entries);
  EXPECT_EQ(bytes, build_torch_state_dict(entries));
  const TorchArchive archive = TorchArchive::parse(bytes, "memory");
  ASSERT_EQ(archive.tensors().size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(archive.tensors()[i].name, entries[i].name);
    EXPECT_EQ(archive.tensors()[i].dtype, entries[i].dtype);
    EXPECT_EQ(archive.tensors()[i].shape, entries[i].shape);
    EXPECT_EQ(as_text(archive.tensors()[i].bytes), as_text(entries[i].bytes));
    if (!entries[i].bytes.empty()) {
      EXPECT_EQ((archive.tensors()[i].bytes.data() - bytes.data()) % 64, 0);
    }
  }
}

TEST(TorchWriter, LargeShapesTakeLongerIntegers) {
  const std::vector<uint8_t> data(70000, 3);
  const auto bytes = build_torch_state_dict(
      {{"a", DType::u8, {70000}, bytes_of(data)}, {"b", DType::u8, {0, int64_t{1} << 40}, {}}}, "step_7");
  const TorchArchive archive = TorchArchive::parse(bytes, "memory");
  EXPECT_EQ(archive.at("a").shape, (std::vector<int64_t>{70000}));
  EXPECT_EQ(archive.at("b").shape, (std::vector<int64_t>{0, int64_t{1} << 40}));
}

TEST(TorchWriter, ChecksItsArguments) {
  const auto code = ExitCode::unexpected;
  expect_error([] { build_torch_state_dict({{"a", DType::f32, {2}, as_bytes("1234")}}); }, code, {"'a'", "[2]"});
  expect_error(
      [] {
        build_torch_state_dict({{"a", DType::u8, {}, as_bytes("1")}, {"a", DType::u8, {}, as_bytes("1")}});
      },
      code, {"'a'", "twice"});
  expect_error([] { build_torch_state_dict({}, "a/b"); }, code, {"'a/b'"});
}

TEST(TorchArchive, DamageNeverCrashes) {
  const auto read = [](std::span<const std::byte> bytes) { TorchArchive::parse(bytes, "x.pt"); };
  for (const std::string file : {"nested.pt", "script.pt"}) {
    const std::string good = read_text(fixture("formats/" + file), ExitCode::data);
    expect_truncations_fail(good, ExitCode::checkpoint, read);
    EXPECT_GT(expect_flips_are_safe(good, 3000, ExitCode::checkpoint, read), 300);
  }
}

// Without a look at the storages: the same tensors, at the same bytes, and damage is refused likewise.
TEST(TorchArchive, PlacesAreThoseOfTheTensors) {
  for (const std::string file : {"nested.pt", "script.pt"}) {
    const std::string good = read_text(fixture("formats/" + file), ExitCode::data);
    const TorchArchive archive = TorchArchive::parse(as_bytes(good), file);
    size_t copied = 0;
    const auto places_of = [&](std::span<const std::byte> bytes) {
      return torch_places(
          bytes.size(),
          [&](uint64_t offset, std::span<std::byte> into) {
            ASSERT_LE(offset + into.size(), bytes.size());
            std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
            copied += into.size();
          },
          "x.pt");
    };
    bool strided = false;
    try {
      const std::vector<TorchPlace> places = places_of(as_bytes(good));
      ASSERT_EQ(places.size(), archive.tensors().size());
      for (size_t i = 0; i < places.size(); ++i) {
        const NamedTensor& tensor = archive.tensors()[i];
        EXPECT_EQ(places[i].name, tensor.name);
        EXPECT_EQ(places[i].dtype, tensor.dtype);
        EXPECT_EQ(places[i].shape, tensor.shape);
        EXPECT_EQ(good.substr(places[i].begin, tensor.bytes.size()), as_text(tensor.bytes)) << tensor.name;
      }
    } catch (const Error& error) {
      strided = std::string(error.what()).find("is strided") != std::string::npos;
      EXPECT_TRUE(strided) << error.what();
    }
    EXPECT_EQ(strided, file == "nested.pt");
    EXPECT_GT(copied, 0U);
    expect_truncations_fail(good, ExitCode::checkpoint, places_of);
    expect_flips_are_safe(good, 3000, ExitCode::checkpoint, places_of);
  }
}

// The CRC-32 keeps damage from the machine, so its pickle is damaged before the archive is built.
TEST(TorchArchive, DamagedPicklesNeverCrash) {
  const std::string file = read_text(fixture("formats/nested.pt"), ExitCode::data);
  const ZipReader zip(as_bytes(file), "nested.pt");
  const std::string good(as_text(zip.at("nested/data.pkl")));
  const auto read = [&](std::span<const std::byte> pickle) {
    ZipWriter writer;
    for (const auto& name : zip.names()) {
      if (name == "nested/data.pkl") {
        writer.add(name, pickle);
      } else {
        writer.add(name, zip.at(name));
      }
    }
    TorchArchive::parse(writer.finish(), "x.pt");
  };
  expect_truncations_fail(good, ExitCode::checkpoint, read);
  EXPECT_GT(expect_flips_are_safe(good, 5000, ExitCode::checkpoint, read), 1000);
}

}  // namespace
}  // namespace hrm
