/* Stands between a process and libc's calls on files, for LD_PRELOAD.

   Beneath one folder, the armed root, each call is an event with a number that all processes count together which were
   forked from the one that loaded this library. At an event it can fail the call, cut it short, or kill the process
   before it, after it, or half-way through a write. It can also log every event that changes something, with the data,
   so that the order is the one in which the file system saw them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN_WRITE = 1, OPEN_READ = 2, WRITE = 4, READ = 8, FSYNC = 16, FSYNC_FOLDER = 32, CLOSE = 64, RENAME = 128,
       UNLINK = 256, MKDIR = 512, RMDIR = 1024, TRUNCATE = 2048, LINK = 4096 };
enum { COUNT, FAIL, CUT, KILL_BEFORE, KILL_AFTER, KILL_MIDWAY };
enum { ONCE, FOR_GOOD, EVERY_SECOND };

#define MAX_FDS 65536
#define MAX_RECORDS 65536
#define MAX_DATA (256u << 20)
#define MAX_PROCESSES 16
#define PATH_BYTES 512

struct record {
    int32_t kind, created;
    int64_t result, inode, offset, size, data;
    char path[PATH_BYTES], other[PATH_BYTES];
};

struct state {
    _Atomic int armed, hits, events, hit_kind;
    int root_size, action, error, when, logging, kill_all;
    int64_t point;
    int mask, later_mask;
    char root[PATH_BYTES], hit_path[PATH_BYTES];
    _Atomic int processes;
    int pids[MAX_PROCESSES];
    _Atomic int lock;
    _Atomic int records;
    uint16_t kinds[MAX_RECORDS];
    _Atomic int64_t data_used;
    struct record record[MAX_RECORDS];
    unsigned char data[MAX_DATA];
};

static struct state *shared;
static char ours[MAX_FDS];  /* what a descriptor is: 0 nothing of ours, 1 a file, 2 a folder */

#define REAL(type, name, ...) \
    static type (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED) abort();
}

/* -- what the tests call ---------------------------------------------------------------------- */

void shim_arm(const char *root, int mask, int action, int64_t point, int when, int later_mask, int error,
              int kill_all, int logging) {
    shared->armed = 0;
    shared->root_size = (int)strlen(root);
    memcpy(shared->root, root, shared->root_size + 1);
    shared->mask = mask;
    shared->action = action;
    shared->point = point;
    shared->when = when;
    shared->later_mask = later_mask;
    shared->error = error;
    shared->kill_all = kill_all;
    shared->logging = logging;
    shared->events = shared->hits = shared->hit_kind = shared->records = shared->processes = shared->lock = 0;
    shared->data_used = 0;
    shared->hit_path[0] = 0;
    shared->armed = 1;
}

void shim_disarm(void) { shared->armed = 0; }
int shim_events(void) { return shared->events; }
int shim_hits(void) { return shared->hits; }
int shim_hit_kind(void) { return shared->hit_kind; }
const char *shim_hit_path(void) { return shared->hit_path; }
int shim_records(void) { return shared->records; }
struct record *shim_record(int number) { return &shared->record[number]; }
int shim_kind(int number) { return shared->kinds[number]; }
unsigned char *shim_data(void) { return shared->data; }

/* A process that dies with the others when all are to be killed. */
void shim_join(void) {
    int place = shared->processes++;
    if (place < MAX_PROCESSES) shared->pids[place] = getpid();
}

/* -- which calls are events --------------------------------------------------------------------- */

static int beneath(const char *path) {
    return shared->armed && !strncmp(path, shared->root, shared->root_size)
        && (path[shared->root_size] == '/' || path[shared->root_size] == 0);
}

/* The whole path in `out`; whether it lies beneath the root. */
static int resolve(int folder, const char *path, char *out) {
    char link[64];
    ssize_t size = 0;
    if (!shared || !shared->armed || !path) return 0;
    if (path[0] != '/') {
        if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        size = readlink(link, out, PATH_BYTES - 2);
        if (size < 0) return 0;
        out[size++] = '/';
    }
    if (size + strlen(path) >= PATH_BYTES) return 0;
    strcpy(out + size, path);
    return beneath(out);
}

static void die(void) {
    if (shared->kill_all)
        for (int place = 0; place < shared->processes && place < MAX_PROCESSES; place++)
            if (shared->pids[place] != getpid()) kill(shared->pids[place], SIGKILL);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void enter(void) {
    if (shared->logging)
        while (atomic_exchange(&shared->lock, 1)) sched_yield();
}

static void leave(void) {
    if (shared->logging) shared->lock = 0;
}

/* Count an event; what is to be done at it. Dies here if it is to die before the call. */
static int event(int kind, const char *path) {
    if (!(kind & shared->mask)) return COUNT;
    int number = shared->events++, hit;
    if (number < MAX_RECORDS) shared->kinds[number] = kind;
    if (number == shared->point) hit = 1;
    else if (number < shared->point || !(kind & shared->later_mask)) hit = 0;
    else hit = shared->when == FOR_GOOD || (shared->when == EVERY_SECOND && (number - shared->point) % 2 == 0);
    if (!hit || shared->action == COUNT) return COUNT;
    if (shared->action == KILL_MIDWAY && kind != WRITE) return COUNT;  /* what has no middle */
    if (shared->action == CUT && !(kind & (WRITE | READ))) return COUNT;
    if (!shared->hits++) {
        shared->hit_kind = kind;
        strncpy(shared->hit_path, path, PATH_BYTES - 1);
    }
    if (shared->action == KILL_BEFORE) die();
    return shared->action;
}

static void after(int action) {
    if (action == KILL_AFTER || action == KILL_MIDWAY) die();
}

static void log_event(int kind, int64_t result, int64_t inode, int64_t offset, const void *data, int64_t size,
                      int created, const char *path, const char *other) {
    if (!shared->logging) return;
    int number = shared->records++;
    if (number >= MAX_RECORDS || shared->data_used + (data ? size : 0) > MAX_DATA) abort();
    struct record *record = &shared->record[number];
    record->kind = kind;
    record->created = created;
    record->result = result;
    record->inode = inode;
    record->offset = offset;
    record->size = size;
    record->data = shared->data_used;
    if (data) {
        memcpy(shared->data + shared->data_used, data, size);
        shared->data_used += size;
    }
    snprintf(record->path, PATH_BYTES, "%s", path ? path : "");
    snprintf(record->other, PATH_BYTES, "%s", other ? other : "");
}

static int64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? -1 : (int64_t)found.st_ino;
}

static int known(int fd) { return shared && shared->armed && fd >= 0 && fd < MAX_FDS && ours[fd]; }

/* -- opening and closing -------------------------------------------------------------------------- */

static int open_with(int (*call)(int, const char *, int, ...), int folder, const char *path, int flags, mode_t mode) {
    char full[PATH_BYTES];
    if (!resolve(folder, path, full)) {
        int fd = call(folder, path, flags, mode);
        if (fd >= 0 && fd < MAX_FDS) ours[fd] = 0;
        return fd;
    }
    int kind = (flags & O_ACCMODE) == O_RDONLY ? OPEN_READ : OPEN_WRITE;
    int action = event(kind, full);
    if (action == FAIL) {
        errno = shared->error;
        return -1;
    }
    enter();
    int created = (flags & O_CREAT) && faccessat(folder, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    int fd = call(folder, path, flags, mode), error = errno;
    struct stat found;
    if (fd >= 0 && fd < MAX_FDS && !fstat(fd, &found)) {
        ours[fd] = S_ISDIR(found.st_mode) ? 2 : 1;
        if (kind == OPEN_WRITE)
            log_event(OPEN_WRITE, 0, found.st_ino, 0, NULL, (flags & O_TRUNC) != 0, created, full, NULL);
    }
    leave();
    after(action);
    errno = error;
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    } \
    REAL(int, openat, int, const char *, int, ...)

int open(const char *path, int flags, ...) { MODE(flags); return open_with(real_openat, AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) {
    MODE(flags);
    return open_with(real_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return open_with(real_openat, folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags);
    return open_with(real_openat, folder, path, flags | O_LARGEFILE, mode);
}
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char *path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char *path, int flags) { return openat64(folder, path, flags); }

int close(int fd) {
    REAL(int, close, int);
    if (!known(fd)) return real_close(fd);
    int action = event(CLOSE, "");
    ours[fd] = 0;
    int result = real_close(fd), error = errno;
    after(action);
    if (action == FAIL) {  /* as Linux does it: closed all the same */
        errno = shared->error;
        return -1;
    }
    errno = error;
    return result;
}

/* -- writing and reading ---------------------------------------------------------------------------- */

static ssize_t write_with(int fd, const void *data, size_t size, int64_t offset) {
    REAL(ssize_t, write, int, const void *, size_t);
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    if (!known(fd)) return offset < 0 ? real_write(fd, data, size) : real_pwrite64(fd, data, size, offset);
    int action = event(WRITE, "");
    if (action == FAIL) {
        errno = shared->error;
        return -1;
    }
    if (action == CUT || action == KILL_MIDWAY) size = size > 1 ? size / 2 : size;
    enter();
    int64_t at = offset;
    if (shared->logging && offset < 0)
        at = lseek64(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    ssize_t result = offset < 0 ? real_write(fd, data, size) : real_pwrite64(fd, data, size, offset);
    int error = errno;
    if (result > 0) log_event(WRITE, result, inode_of(fd), at, data, result, 0, NULL, NULL);
    leave();
    after(action);
    errno = error;
    return result;
}

static ssize_t read_with(int fd, void *data, size_t size, int64_t offset) {
    REAL(ssize_t, read, int, void *, size_t);
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    if (!known(fd)) return offset < 0 ? real_read(fd, data, size) : real_pread64(fd, data, size, offset);
    int action = event(READ, "");
    if (action == FAIL) {
        errno = shared->error;
        return -1;
    }
    if (action == CUT) size = size > 1 ? size / 2 : size;
    ssize_t result = offset < 0 ? real_read(fd, data, size) : real_pread64(fd, data, size, offset);
    after(action);
    return result;
}

/* Of several buffers one call takes the first that is not empty: a short write or read, as any of these may be. */
static const struct iovec *first(const struct iovec *parts, int count) {
    for (int number = 0; number < count; number++)
        if (parts[number].iov_len) return &parts[number];
    return NULL;
}

ssize_t write(int fd, const void *data, size_t size) { return write_with(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return write_with(fd, data, size, offset); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return write_with(fd, data, size, offset); }
ssize_t read(int fd, void *data, size_t size) { return read_with(fd, data, size, -1); }
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return read_with(fd, data, size, offset); }
ssize_t pread64(int fd, void *data, size_t size, off64_t offset) { return read_with(fd, data, size, offset); }
ssize_t __read_chk(int fd, void *data, size_t size, size_t room) {
    if (size > room) abort();
    return read_with(fd, data, size, -1);
}
ssize_t __pread_chk(int fd, void *data, size_t size, off_t offset, size_t room) {
    if (size > room) abort();
    return read_with(fd, data, size, offset);
}
ssize_t __pread64_chk(int fd, void *data, size_t size, off64_t offset, size_t room) {
    if (size > room) abort();
    return read_with(fd, data, size, offset);
}

#define VECTOR(name, one) \
    ssize_t name(int fd, const struct iovec *parts, int count) { \
        REAL(ssize_t, name, int, const struct iovec *, int); \
        const struct iovec *part = first(parts, count); \
        return known(fd) && part ? one(fd, part->iov_base, part->iov_len, -1) : real_##name(fd, parts, count); \
    }
#define VECTOR_AT(name, one) \
    ssize_t name(int fd, const struct iovec *parts, int count, off64_t offset) { \
        REAL(ssize_t, name, int, const struct iovec *, int, off64_t); \
        const struct iovec *part = first(parts, count); \
        return known(fd) && part ? one(fd, part->iov_base, part->iov_len, offset) \
                                 : real_##name(fd, parts, count, offset); \
    }
VECTOR(writev, write_with)
VECTOR(readv, read_with)
VECTOR_AT(pwritev, write_with)
VECTOR_AT(pwritev64, write_with)
VECTOR_AT(preadv, read_with)
VECTOR_AT(preadv64, read_with)

/* -- syncing, and the size ---------------------------------------------------------------------------- */

#define SYNC(name) \
    int name(int fd) { \
        REAL(int, name, int); \
        if (!known(fd)) return real_##name(fd); \
        int folder = ours[fd] == 2, action = event(folder ? FSYNC_FOLDER : FSYNC, ""); \
        char path[PATH_BYTES] = "", link[64]; \
        if (action == FAIL) { \
            errno = shared->error; \
            return -1; \
        } \
        enter(); \
        int result = real_##name(fd), error = errno; \
        if (shared->logging && folder) { \
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd); \
            ssize_t size = readlink(link, path, sizeof path - 1); \
            path[size < 0 ? 0 : size] = 0; \
        } \
        if (!result) log_event(folder ? FSYNC_FOLDER : FSYNC, 0, inode_of(fd), 0, NULL, 0, 0, path, NULL); \
        leave(); \
        after(action); \
        errno = error; \
        return result; \
    }
SYNC(fsync)
SYNC(fdatasync)

#define TRUNCATE_FILE(name, offset_type) \
    int name(int fd, offset_type size) { \
        REAL(int, name, int, offset_type); \
        if (!known(fd)) return real_##name(fd, size); \
        int action = event(TRUNCATE, ""); \
        if (action == FAIL) { \
            errno = shared->error; \
            return -1; \
        } \
        enter(); \
        int result = real_##name(fd, size), error = errno; \
        if (!result) log_event(TRUNCATE, 0, inode_of(fd), 0, NULL, size, 0, NULL, NULL); \
        leave(); \
        after(action); \
        errno = error; \
        return result; \
    }
TRUNCATE_FILE(ftruncate, off_t)
TRUNCATE_FILE(ftruncate64, off64_t)

/* -- names -------------------------------------------------------------------------------------------- */

#define NAMED(kind, path, other, inode, call) \
    int action = event(kind, path); \
    if (action == FAIL) { \
        errno = shared->error; \
        return -1; \
    } \
    enter(); \
    int result = call, error = errno; \
    if (!result) log_event(kind, 0, inode, 0, NULL, 0, 0, path, other); \
    leave(); \
    after(action); \
    errno = error; \
    return result

int renameat2(int from, const char *old, int to, const char *new, unsigned int flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned int);
    char one[PATH_BYTES], other[PATH_BYTES];
    int found = resolve(from, old, one);
    if (!(resolve(to, new, other) | found)) return real_renameat2(from, old, to, new, flags);
    NAMED(RENAME, one, other, 0, real_renameat2(from, old, to, new, flags));
}
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    char one[PATH_BYTES], other[PATH_BYTES];
    int found = resolve(from, old, one);
    if (!(resolve(to, new, other) | found)) return real_linkat(from, old, to, new, flags);
    NAMED(LINK, one, other, 0, real_linkat(from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    char full[PATH_BYTES];
    if (!resolve(folder, path, full)) return real_unlinkat(folder, path, flags);
    NAMED(flags & AT_REMOVEDIR ? RMDIR : UNLINK, full, NULL, 0, real_unlinkat(folder, path, flags));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
    struct stat found;
    return unlinkat(AT_FDCWD, path, !lstat(path, &found) && S_ISDIR(found.st_mode) ? AT_REMOVEDIR : 0);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    char full[PATH_BYTES];
    if (!resolve(folder, path, full)) return real_mkdirat(folder, path, mode);
    NAMED(MKDIR, full, NULL, 0, real_mkdirat(folder, path, mode));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
