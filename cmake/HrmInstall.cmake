# cmake --install build --prefix DIR: all that hrm_train needs on a machine with nothing but the C library (and a driver).
#   DIR/bin/hrm_train            finds its libraries by paths relative to itself: DIR may be moved
#   DIR/lib                      the distribution's libraries that it needs
#   DIR/lib/torch, lib/nvidia    those of the wheels, unchanged, in the wheels' layout: their own search paths ($ORIGIN/
#                                ../../nvidia/...) hold there, nothing need be patched (NVIDIA's licences forbid that), and
#                                no folder outside of DIR is ever searched
#   DIR/share/hrm_train          configurations, the data that they name, examples, trained models
#   DIR/share/doc/hrm_train      licences of everything that is packed, the README, the documentation
#   DIR/share/man, bash-completion, zsh, fish    the man page and completion scripts, as the program itself prints them
# Which libraries: install_libraries.cmake, at install time. HRM_INSTALL_HARD_LINKS=1 in the environment makes hard links
# of the wheels' gigabytes instead of copies.
set(_rpath "$ORIGIN/../lib")
foreach(path IN LISTS HRM_RUNTIME_PATHS)
  file(RELATIVE_PATH path "${HRM_SITE_PACKAGES}" "${path}")
  list(APPEND _rpath "$ORIGIN/../lib/${path}")
endforeach()
set_target_properties(hrm_train PROPERTIES INSTALL_RPATH "${_rpath}")
# DT_RPATH instead of DT_RUNPATH: it also serves libraries that have no path of their own, and it comes before
# LD_LIBRARY_PATH, in which clusters' modules put other cuDNN and NCCL of the same names.
target_link_options(hrm_train PRIVATE "LINKER:--disable-new-dtags")

# Libraries that are opened by name, so that no table of needed ones has them. Not packed, since nothing here calls them:
# cuSOLVER and libtorch_cuda_linalg (linear algebra), cuFFTW, nvBLAS, NVSHMEM's transports, CUPTI's counters.
set(_opened "")
if(HRM_WITH_CUDA)
  file(GLOB _opened "${HRM_SITE_PACKAGES}/nvidia/cudnn/lib/libcudnn_*.so.*"
                    "${HRM_SITE_PACKAGES}/nvidia/cu13/lib/libnvrtc.so.*"
                    "${HRM_SITE_PACKAGES}/nvidia/cu13/lib/libnvrtc-builtins.so.*")
  list(APPEND _opened "${HRM_TORCH_ROOT}/lib/libcaffe2_nvrtc.so")
endif()

install(TARGETS hrm_train RUNTIME DESTINATION bin)
install(DIRECTORY configs examples DESTINATION share/hrm_train USE_SOURCE_PERMISSIONS)
install(FILES data/README.md DESTINATION share/hrm_train/data)
install(DIRECTORY data/sudoku data/digits DESTINATION share/hrm_train/data)
# Trained models: the checkpoints that have a card.
file(GLOB _cards CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/checkpoints/*/README.md")
foreach(card IN LISTS _cards)
  get_filename_component(model "${card}" DIRECTORY)
  install(DIRECTORY "${model}" DESTINATION share/hrm_train/checkpoints)
  install(FILES "${card}" DESTINATION "share/doc/hrm_train/${model}")
endforeach()
install(FILES LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md CITATION.cff THIRD_PARTY.md
        DESTINATION share/doc/hrm_train)
# The pages of the README's links.
install(DIRECTORY docs DESTINATION share/doc/hrm_train FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES checkpoints/README.md DESTINATION share/doc/hrm_train/checkpoints)
install(CODE "set(BINARY [[$<TARGET_FILE:hrm_train>]])
set(OPENED [[${_opened}]])
set(SITE_PACKAGES [[${HRM_SITE_PACKAGES}]])")
install(CODE "
function(print_to file)
  execute_process(COMMAND [[$<TARGET_FILE:hrm_train>]] \${ARGN} OUTPUT_VARIABLE text RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR \"hrm_train \${ARGN} ended with \${code}\")
  endif()
  file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share/\${file}\" \"\${text}\")
endfunction()
print_to(man/man1/hrm_train.1 reference man)
print_to(bash-completion/completions/hrm_train completion bash)
print_to(zsh/site-functions/_hrm_train completion zsh)
print_to(fish/vendor_completions.d/hrm_train.fish completion fish)
")
install(SCRIPT cmake/install_libraries.cmake)
