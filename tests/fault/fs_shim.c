// Loaded with LD_PRELOAD: system calls on files below HRM_SHIM_ROOT fail at random, as a bad disk lets them fail.
//
//   HRM_SHIM_ROOT   folder whose files it is about
//   HRM_SHIM_RATE   how many of 1000 calls fail
//   HRM_SHIM_SEED   of the random numbers
//   HRM_SHIM_CALLS  only these: names between commas (default: all)
//   HRM_SHIM_WHILE  only while this file exists (default: always)
//   HRM_SHIM_LOG    each failure is a line of this file
//
// write: EIO, ENOSPC, EINTR, or a part of it; fsync, open to write, fallocate, ftruncate: EIO, ENOSPC, EINTR; close: the
// same, but the file is closed; mkdir, rename: EIO, ENOSPC.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(name)*)dlsym(RTLD_NEXT, #name))

static uint64_t random_number(void) {
  static atomic_uint_fast64_t counter;
  static const char* seed;
  if (!seed) seed = getenv("HRM_SHIM_SEED") ? getenv("HRM_SHIM_SEED") : "1";
  uint64_t x = strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15u + atomic_fetch_add(&counter, 1) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static int below_root(const char* path) {
  const char* root = getenv("HRM_SHIM_ROOT");
  return root && strncmp(path, root, strlen(root)) == 0;
}

static int chosen(const char* call) {
  const char* calls = getenv("HRM_SHIM_CALLS");
  if (!calls) return 1;
  const size_t size = strlen(call);
  for (const char* at = calls; (at = strstr(at, call)); ++at) {
    if ((at == calls || at[-1] == ',') && (at[size] == 0 || at[size] == ',')) return 1;
  }
  return 0;
}

// 0: this call does its work; else what becomes of it, of the first `kinds` of EIO, ENOSPC, EINTR, a part (-1).
static int fault(const char* call, const char* path, int kinds) {
  static const int what[] = {EIO, ENOSPC, EINTR, -1};
  const char *rate = getenv("HRM_SHIM_RATE"), *only = getenv("HRM_SHIM_WHILE"), *log = getenv("HRM_SHIM_LOG");
  if (!rate || !below_root(path) || !chosen(call)) return 0;
  if (only && syscall(SYS_faccessat, AT_FDCWD, only, F_OK) != 0) return 0;
  if (random_number() % 1000 >= strtoull(rate, NULL, 10)) return 0;
  const int error = what[random_number() % (uint64_t)kinds];
  if (log) {
    char line[PATH_MAX + 64];
    const int size = snprintf(line, sizeof line, "%s %s %s\n", call, error == -1 ? "a part" : strerrorname_np(error), path);
    const long fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0 && size > 0) syscall(SYS_write, fd, line, (size_t)size);
    if (fd >= 0) syscall(SYS_close, fd);
  }
  errno = error;
  return error;
}

static int fault_of(const char* call, int fd, int kinds) {
  char name[64], path[PATH_MAX];
  const int before = errno;
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(name, path, sizeof path - 1);
  errno = before;
  if (size <= 0) return 0;
  path[size] = 0;
  return fault(call, path, kinds);
}

ssize_t write(int fd, const void* data, size_t size) {
  const int error = fault_of("write", fd, 4);
  if (error > 0) return -1;
  return REAL(write)(fd, data, error == -1 ? (size + 1) / 2 : size);
}

int fsync(int fd) {
  return fault_of("fsync", fd, 3) ? -1 : REAL(fsync)(fd);
}

int close(int fd) {
  const int error = fault_of("close", fd, 3), result = REAL(close)(fd);
  if (!error) return result;
  errno = error;
  return -1;
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
  return fault_of("fallocate", fd, 3) ? -1 : REAL(fallocate)(fd, mode, offset, size);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return fault_of("fallocate", fd, 3) ? -1 : REAL(fallocate64)(fd, mode, offset, size);
}

int ftruncate(int fd, off_t size) {
  return fault_of("ftruncate", fd, 3) ? -1 : REAL(ftruncate)(fd, size);
}
int ftruncate64(int fd, off64_t size) {
  return fault_of("ftruncate", fd, 3) ? -1 : REAL(ftruncate64)(fd, size);
}

int mkdir(const char* path, mode_t mode) {
  return fault("mkdir", path, 2) ? -1 : REAL(mkdir)(path, mode);
}

int rename(const char* from, const char* to) {
  return fault("rename", to, 2) ? -1 : REAL(rename)(from, to);
}

int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  return fault("rename", to, 2) ? -1 : REAL(renameat2)(from_at, from, to_at, to, flags);
}

#define OPEN(name, before, at)                                     \
  int name(before const char* path, int flags, ...) {              \
    mode_t mode = 0;                                               \
    if (flags & (O_CREAT | O_TMPFILE)) {                           \
      va_list more;                                                \
      va_start(more, flags);                                       \
      mode = va_arg(more, mode_t);                                 \
      va_end(more);                                                \
    }                                                              \
    if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_DIRECTORY)) { \
      if (fault("open", path, 3)) return -1;                       \
    }                                                              \
    return REAL(name)(at path, flags, mode);                       \
  }
#define COMMA ,
OPEN(open, , )
OPEN(open64, , )
OPEN(openat, int folder COMMA, folder COMMA)
OPEN(openat64, int folder COMMA, folder COMMA)
