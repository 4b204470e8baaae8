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
#define PLACE 216

enum { FSYNC = 1, OPEN = 2, READ = 4, WRITE = 8, RENAME = 16, LIST = 32, MKDIR = 64, MAP = 128 };
enum { ANY = 0, FILES = 1, DIRECTORIES = 2 };

typedef struct {                     /* 256 bytes; faultfs.py knows the same layout */
    uint32_t active, operations;
    int32_t number;                  /* errno; 0: only the delay */
    uint32_t only;
    uint64_t delay_us, times, injected; /* fail or delay `times` times */
    char place[PLACE];               /* paths that contain this text */
} Rule;

_Static_assert(sizeof(Rule) == 256, "faultfs.py has another layout");

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
    if (__atomic_fetch_add(&rule->injected, 1, __ATOMIC_SEQ_CST) < rule->times) return 1;
    __atomic_fetch_sub(&rule->injected, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static Rule *matching(int operation, int descriptor, const char *path) {
    for (int i = 0; i < RULES; i++) {
        Rule *rule = &rules[i];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !(rule->operations & operation)) continue;
        if (rule->place[0] && strstr(path, rule->place) == NULL) continue;
        if (rule->only && (rule->only == DIRECTORIES) != is_directory(descriptor, path)) continue;
        if (drawn(rule)) return rule;
    }
    return NULL;
}

static void wait_for(uint64_t microseconds) {
    struct timespec left = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {}
}

/* What is to go wrong with this call, after its delay: its errno, or 0. */
static int fault(int operation, int descriptor, int folder, const char *name) {
    if (rules == NULL || inside) return 0;
    int saved = errno, number = 0;
    char path[PATH_MAX];
    inside = 1;
    if (name == NULL) path_of(descriptor, path);
    else full_path(folder, name, path);
    Rule *rule = matching(operation, name == NULL ? descriptor : -1, path);
    if (rule != NULL) {
        number = rule->number;
        if (rule->delay_us) wait_for(rule->delay_us);
    }
    inside = 0;
    errno = saved;
    return number;
}

#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = (__typeof__(&name))dlsym(RTLD_NEXT, #name); found; })

/* The call, unless a rule says that it fails. */
#define FAULTY(failed, operation, descriptor, folder, name, call)        \
    do {                                                                \
        int number = fault(operation, descriptor, folder, name);        \
        if (number) { errno = number; return failed; }                  \
        return call;                                                    \
    } while (0)

#define BY_DESCRIPTOR(failed, operation, descriptor, call) FAULTY(failed, operation, descriptor, AT_FDCWD, NULL, call)
#define BY_NAME(failed, operation, folder, name, call) FAULTY(failed, operation, -1, folder, name, call)

int fsync(int file) { BY_DESCRIPTOR(-1, FSYNC, file, REAL(fsync)(file)); }
int fdatasync(int file) { BY_DESCRIPTOR(-1, FSYNC, file, REAL(fdatasync)(file)); }

ssize_t read(int file, void *data, size_t size) { BY_DESCRIPTOR(-1, READ, file, REAL(read)(file, data, size)); }
ssize_t pread(int file, void *data, size_t size, off_t at) { BY_DESCRIPTOR(-1, READ, file, REAL(pread)(file, data, size, at)); }
ssize_t pread64(int file, void *data, size_t size, off64_t at) { BY_DESCRIPTOR(-1, READ, file, REAL(pread64)(file, data, size, at)); }
ssize_t write(int file, const void *data, size_t size) { BY_DESCRIPTOR(-1, WRITE, file, REAL(write)(file, data, size)); }
ssize_t pwrite(int file, const void *data, size_t size, off_t at) { BY_DESCRIPTOR(-1, WRITE, file, REAL(pwrite)(file, data, size, at)); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) { BY_DESCRIPTOR(-1, WRITE, file, REAL(pwrite64)(file, data, size, at)); }

static mode_t mode_in(int flags, va_list rest) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(rest, int) : 0;
}

#define OPENER(name, parameters, folder, arguments)               \
    int name parameters {                                               \
        va_list rest;                                                   \
        va_start(rest, flags);                                          \
        mode_t mode = mode_in(flags, rest);                             \
        va_end(rest);                                                   \
        BY_NAME(-1, OPEN, folder, path, REAL(name) arguments);     \
    }
OPENER(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENER(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENER(openat, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))
OPENER(openat64, (int folder, const char *path, int flags, ...), folder, (folder, path, flags, mode))

FILE *fopen(const char *path, const char *how) { BY_NAME(NULL, OPEN, AT_FDCWD, path, REAL(fopen)(path, how)); }
FILE *fopen64(const char *path, const char *how) { BY_NAME(NULL, OPEN, AT_FDCWD, path, REAL(fopen64)(path, how)); }

/* By the new name: it is the one that says what the file is going to be. */
int rename(const char *old, const char *new) { BY_NAME(-1, RENAME, AT_FDCWD, new, REAL(rename)(old, new)); }
int renameat(int from, const char *old, int to, const char *new) { BY_NAME(-1, RENAME, to, new, REAL(renameat)(from, old, to, new)); }
int link(const char *old, const char *new) { BY_NAME(-1, RENAME, AT_FDCWD, new, REAL(link)(old, new)); }

int mkdir(const char *path, mode_t mode) { BY_NAME(-1, MKDIR, AT_FDCWD, path, REAL(mkdir)(path, mode)); }
int mkdirat(int folder, const char *path, mode_t mode) { BY_NAME(-1, MKDIR, folder, path, REAL(mkdirat)(folder, path, mode)); }

/* Memory of an allocator, too; then the path is empty. */
void *mmap(void *at, size_t size, int rights, int flags, int file, off_t from) { BY_DESCRIPTOR(MAP_FAILED, MAP, file, REAL(mmap)(at, size, rights, flags, file, from)); }
void *mmap64(void *at, size_t size, int rights, int flags, int file, off64_t from) { BY_DESCRIPTOR(MAP_FAILED, MAP, file, REAL(mmap64)(at, size, rights, flags, file, from)); }

DIR *opendir(const char *path) { BY_NAME(NULL, LIST, AT_FDCWD, path, REAL(opendir)(path)); }
DIR *fdopendir(int file) { BY_DESCRIPTOR(NULL, LIST, file, REAL(fdopendir)(file)); }
