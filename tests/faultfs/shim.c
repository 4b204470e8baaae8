/* A disk that is slow or refuses: preloaded into a process, it delays and fails calls of the C library on some paths.
 *
 * The rules lie in a file (environment variable FAULTFS) that every process maps: who changes a rule changes it at once, in all
 * of them, and who reads its counters sees what happened. See faultfs.py, which writes it. The first matching rule decides.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RULES 16
#define PLACE 224

enum { FSYNC = 1, OPEN = 2, READ = 4, WRITE = 8, RENAME = 16, UNLINK = 32, STAT = 64, LIST = 128, MKDIR = 256, MAP = 512 };
enum { ANY = 0, FILES = 1, DIRECTORIES = 2 };

typedef struct {                     /* 320 bytes; faultfs.py knows the same layout */
    uint32_t active, operations;
    int32_t number;                  /* errno; 0: only the delay */
    uint32_t only;
    uint64_t delay_us, chance, seed; /* chance: of 2^32 */
    uint64_t skip, times;            /* leave the first `skip` alone; fail `times` times */
    uint64_t seen, matched, injected;
    uint32_t done, unused;           /* done: the call is carried out, and then said to have failed */
    char place[PLACE + 8];           /* paths that contain this text */
} Rule;

_Static_assert(sizeof(Rule) == 320, "faultfs.py has another layout");

static Rule *rules;
static __thread int inside; /* our own calls are nobody's business */

__attribute__((constructor)) static void start(void) {
    const char *control = getenv("FAULTFS");
    if (control == NULL) return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof(Rule) * RULES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (memory != MAP_FAILED) rules = memory;
}

static uint64_t mixed(uint64_t x) { /* splitmix64 */
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static void path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

static void full_path(int folder, const char *name, char *path) {
    size_t used = 0;
    if (name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, path, PATH_MAX) < 0) path[0] = 0;
        } else {
            path_of(folder, path);
        }
        used = strlen(path);
        if (used < PATH_MAX - 1) path[used++] = '/';
    }
    snprintf(path + used, PATH_MAX - used, "%s", name);
}

static int is_directory(int descriptor, const char *path) {
    struct stat status;
    long found = descriptor >= 0 ? syscall(SYS_fstat, descriptor, &status)
                                 : syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW);
    return found == 0 && S_ISDIR(status.st_mode);
}

static int drawn(Rule *rule) {
    uint64_t turn = __atomic_fetch_add(&rule->matched, 1, __ATOMIC_SEQ_CST);
    if (turn < rule->skip) return 0;
    if (rule->chance < (1ULL << 32) && (mixed(rule->seed ^ mixed(turn)) & 0xffffffffULL) >= rule->chance) return 0;
    uint64_t nth = __atomic_fetch_add(&rule->injected, 1, __ATOMIC_SEQ_CST);
    if (nth < rule->times) return 1;
    __atomic_fetch_sub(&rule->injected, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static Rule *matching(int operation, int descriptor, const char *path) {
    for (int i = 0; i < RULES; i++) {
        Rule *rule = &rules[i];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !(rule->operations & operation)) continue;
        if (rule->place[0] && strstr(path, rule->place) == NULL) continue;
        if (rule->only && (rule->only == DIRECTORIES) != is_directory(descriptor, path)) continue;
        __atomic_fetch_add(&rule->seen, 1, __ATOMIC_SEQ_CST);
        if (drawn(rule)) return rule;
    }
    return NULL;
}

static void wait_for(uint64_t microseconds) {
    struct timespec left = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* What is to go wrong with this call: its errno, or 0. `after`: only once it was carried out, and so many microseconds later. */
static int fault(int operation, int descriptor, int folder, const char *name, int *after, uint64_t *late) {
    *after = 0;
    if (rules == NULL || inside) return 0;
    int saved = errno, number = 0;
    char path[PATH_MAX];
    inside = 1;
    if (name == NULL) path_of(descriptor, path);
    else full_path(folder, name, path);
    Rule *rule = matching(operation, name == NULL ? descriptor : -1, path);
    if (rule != NULL) {
        number = rule->number;
        *after = rule->done;
        *late = rule->delay_us;
        if (rule->delay_us && !rule->done) wait_for(rule->delay_us);
    }
    inside = 0;
    errno = saved;
    return number;
}

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); found; })

/* The call, with what a rule says about it: failed before, or carried out and then said to have failed. */
#define FAULTY(type, failed, operation, descriptor, folder, name, call) \
    do {                                                                \
        uint64_t late;                                                  \
        int after, number = fault(operation, descriptor, folder, name, &after, &late); \
        if (number && !after) { errno = number; return failed; }        \
        type result = call;                                             \
        if (!after) return result;                                      \
        if (late) wait_for(late);                                       \
        errno = number;                                                 \
        return number ? failed : result;                                \
    } while (0)

#define BY_DESCRIPTOR(type, failed, operation, descriptor, call) FAULTY(type, failed, operation, descriptor, AT_FDCWD, NULL, call)
#define BY_NAME(type, failed, operation, folder, name, call) FAULTY(type, failed, operation, -1, folder, name, call)

int fsync(int file) { BY_DESCRIPTOR(int, -1, FSYNC, file, REAL(fsync)(file)); }
int fdatasync(int file) { BY_DESCRIPTOR(int, -1, FSYNC, file, REAL(fdatasync)(file)); }

ssize_t read(int file, void *data, size_t size) { BY_DESCRIPTOR(ssize_t, -1, READ, file, REAL(read)(file, data, size)); }
ssize_t pread(int file, void *data, size_t size, off_t at) { BY_DESCRIPTOR(ssize_t, -1, READ, file, REAL(pread)(file, data, size, at)); }
ssize_t pread64(int file, void *data, size_t size, off64_t at) { BY_DESCRIPTOR(ssize_t, -1, READ, file, REAL(pread64)(file, data, size, at)); }
ssize_t write(int file, const void *data, size_t size) { BY_DESCRIPTOR(ssize_t, -1, WRITE, file, REAL(write)(file, data, size)); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { BY_DESCRIPTOR(ssize_t, -1, WRITE, file, REAL(pwrite)(file, data, size, at)); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { BY_DESCRIPTOR(ssize_t, -1, WRITE, file, REAL(pwrite64)(file, data, size, at)); }

static mode_t mode_in(int flags, va_list rest) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(rest, int) : 0;
}

#define OPENER(name, parameters, folder, arguments)               \
    int name parameters {                                               \
        va_list rest;                                                   \
        va_start(rest, flags);                                          \
        mode_t mode = mode_in(flags, rest);                             \
        va_end(rest);                                                   \
        BY_NAME(int, -1, OPEN, folder, path, REAL(name) arguments);     \
    }
OPENER(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENER(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENER(openat, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))
OPENER(openat64, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))

FILE *fopen(const char *path, const char *how) { BY_NAME(FILE *, NULL, OPEN, AT_FDCWD, path, REAL(fopen)(path, how)); }
FILE *fopen64(const char *path, const char *how) { BY_NAME(FILE *, NULL, OPEN, AT_FDCWD, path, REAL(fopen64)(path, how)); }

/* By the new name: it is the one that says what the file is going to be. */
int rename(const char *old, const char *new) { BY_NAME(int, -1, RENAME, AT_FDCWD, new, REAL(rename)(old, new)); }
int renameat(int from, const char *old, int to, const char *new) { BY_NAME(int, -1, RENAME, to, new, REAL(renameat)(from, old, to, new)); }
int link(const char *old, const char *new) { BY_NAME(int, -1, RENAME, AT_FDCWD, new, REAL(link)(old, new)); }

int unlink(const char *path) { BY_NAME(int, -1, UNLINK, AT_FDCWD, path, REAL(unlink)(path)); }
int unlinkat(int folder, const char *path, int flags) { BY_NAME(int, -1, UNLINK, folder, path, REAL(unlinkat)(folder, path, flags)); }
int rmdir(const char *path) { BY_NAME(int, -1, UNLINK, AT_FDCWD, path, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { BY_NAME(int, -1, MKDIR, AT_FDCWD, path, REAL(mkdir)(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) { BY_NAME(int, -1, MKDIR, folder, path, REAL(mkdirat)(folder, path, mode)); }

int stat(const char *path, struct stat *s) { BY_NAME(int, -1, STAT, AT_FDCWD, path, REAL(stat)(path, s)); }
int stat64(const char *path, struct stat64 *s) { BY_NAME(int, -1, STAT, AT_FDCWD, path, REAL(stat64)(path, s)); }
int lstat(const char *path, struct stat *s) { BY_NAME(int, -1, STAT, AT_FDCWD, path, REAL(lstat)(path, s)); }
int lstat64(const char *path, struct stat64 *s) { BY_NAME(int, -1, STAT, AT_FDCWD, path, REAL(lstat64)(path, s)); }
int fstat(int file, struct stat *s) { BY_DESCRIPTOR(int, -1, STAT, file, REAL(fstat)(file, s)); }
int fstat64(int file, struct stat64 *s) { BY_DESCRIPTOR(int, -1, STAT, file, REAL(fstat64)(file, s)); }
int fstatat(int folder, const char *path, struct stat *s, int flags) { BY_NAME(int, -1, STAT, folder, path, REAL(fstatat)(folder, path, s, flags)); }
int fstatat64(int folder, const char *path, struct stat64 *s, int flags) { BY_NAME(int, -1, STAT, folder, path, REAL(fstatat64)(folder, path, s, flags)); }

/* Memory of an allocator, too; then the path is empty. */
void *mmap(void *at, size_t size, int rights, int flags, int file, off_t from) { BY_DESCRIPTOR(void *, MAP_FAILED, MAP, file, REAL(mmap)(at, size, rights, flags, file, from)); }
void *mmap64(void *at, size_t size, int rights, int flags, int file, off64_t from) { BY_DESCRIPTOR(void *, MAP_FAILED, MAP, file, REAL(mmap64)(at, size, rights, flags, file, from)); }

DIR *opendir(const char *path) { BY_NAME(DIR *, NULL, LIST, AT_FDCWD, path, REAL(opendir)(path)); }
DIR *fdopendir(int file) { BY_DESCRIPTOR(DIR *, NULL, LIST, file, REAL(fdopendir)(file)); }
