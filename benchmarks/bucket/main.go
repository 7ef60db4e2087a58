// Serve folders as buckets of Cloud Storage, with a fixed delay of each answer and little CPU.
//
//	go build -o bucket . && ./bucket -delay 30ms in=/photos out=
//
// It prints its address, then answers the requests that this project makes: pages of a listing,
// metadata, reads (by sendfile), and uploads in one request or as a session. A waiting request
// holds no thread. An upload is kept in memory; of one by session, only size and checksum are kept.
// With -upload, uploads are limited to this many bytes a second. Only existing names (uploads) and
// missing names (reads) are refused; the project's tests check that it keeps to the protocol.
package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const namesPerPage = 1000

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// object is one object's metadata as the JSON API has it, and the place of its bytes.
type object struct {
	Name         string `json:"name"`
	Size         string `json:"size"`
	Generation   string `json:"generation"`
	Crc32c       string `json:"crc32c"`
	StorageClass string `json:"storageClass"`
	path         string
	data         []byte
}

type listing struct {
	Items         []*object `json:"items,omitempty"`
	Prefixes      []string  `json:"prefixes,omitempty"`
	NextPageToken string    `json:"nextPageToken,omitempty"`
}

// bucket holds objects by name, and the sorted names, sorted again after an upload.
type bucket struct {
	mutex   sync.RWMutex
	objects map[string]*object
	names   []string
}

func (b *bucket) find(name string) *object {
	b.mutex.RLock()
	defer b.mutex.RUnlock()
	return b.objects[name]
}

// insert adds an object, and reports whether its name was free.
func (b *bucket) insert(o *object) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.objects[o.Name] != nil {
		return false
	}
	b.objects[o.Name] = o
	b.names = nil
	return true
}

func (b *bucket) list(query url.Values) listing {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.names == nil {
		for name := range b.objects {
			b.names = append(b.names, name)
		}
		sort.Strings(b.names)
	}
	prefix, delimiter, end := query.Get("prefix"), query.Get("delimiter"), query.Get("endOffset")
	start := max(prefix, query.Get("startOffset"), query.Get("pageToken"))
	most, err := strconv.Atoi(query.Get("maxResults"))
	if err != nil {
		most = namesPerPage
	}
	var found listing
	for at := sort.SearchStrings(b.names, start); at < len(b.names); at++ {
		name := b.names[at]
		if !strings.HasPrefix(name, prefix) || (end != "" && name >= end) {
			break
		}
		if len(found.Items)+len(found.Prefixes) == most {
			found.NextPageToken = name
			break
		}
		if cut := strings.Index(name[len(prefix):], delimiter); delimiter != "" && cut >= 0 {
			folder := name[:len(prefix)+cut+len(delimiter)]
			found.Prefixes = append(found.Prefixes, folder)
			for at+1 < len(b.names) && strings.HasPrefix(b.names[at+1], folder) {
				at++
			}
			continue
		}
		found.Items = append(found.Items, b.objects[name])
	}
	return found
}

// session is an upload in pieces, one after the other.
type session struct {
	name    string
	size    int64
	sum     uint32
	started time.Time
}

// take adds a piece.
func (s *session) take(body io.Reader) error {
	piece := make([]byte, 1<<18)
	for {
		count, err := body.Read(piece)
		s.size += int64(count)
		s.sum = crc32.Update(s.sum, castagnoli, piece[:count])
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// service answers requests.
type service struct {
	url            string
	delay          time.Duration
	uploadBytesPer float64 // a second
	buckets        map[string]*bucket
	sessions       sync.Map // of uploads, by id
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	time.Sleep(s.delay)
	path := r.URL.EscapedPath()
	switch {
	case strings.HasPrefix(path, "/upload/storage/v1/b/"):
		s.upload(w, r, s.buckets[strings.Split(path, "/")[5]])
	case strings.HasPrefix(path, "/storage/v1/b/"):
		s.describe(w, r, strings.Split(path, "/")[4:])
	case strings.HasPrefix(path, "/download/storage/v1/b/"):
		parts := strings.Split(path, "/")[5:]
		s.read(w, r, parts[0], parts[2])
	default:
		name, rest, _ := strings.Cut(path[1:], "/")
		s.read(w, r, name, rest)
	}
}

// describe answers for a bucket, a listing of it, or an object.
func (s *service) describe(w http.ResponseWriter, r *http.Request, parts []string) {
	b := s.buckets[parts[0]]
	switch {
	case b == nil:
		refuse(w, http.StatusNotFound, "no such bucket")
	case len(parts) == 1:
		reply(w, map[string]string{"name": parts[0], "location": "US"})
	case len(parts) == 2:
		reply(w, b.list(r.URL.Query()))
	default:
		name, _ := url.PathUnescape(parts[2])
		if found := b.find(name); found != nil {
			reply(w, found)
		} else {
			refuse(w, http.StatusNotFound, "no such object")
		}
	}
}

// read sends an object's bytes, or a span of them.
func (s *service) read(w http.ResponseWriter, r *http.Request, bucketName, escaped string) {
	name, _ := url.PathUnescape(escaped)
	var found *object
	if b := s.buckets[bucketName]; b != nil {
		found = b.find(name)
	}
	if found == nil {
		refuse(w, http.StatusNotFound, "no such object")
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("ETag", strconv.Quote(found.Crc32c))
	header.Set("X-Goog-Generation", found.Generation)
	header.Set("X-Goog-Hash", "crc32c="+found.Crc32c)
	if found.path == "" {
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(string(found.data)))
		return
	}
	file, err := os.Open(found.path)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer file.Close()
	http.ServeContent(w, r, "", time.Unix(1, 0), file)
}

// upload takes an object in one request, begins a session, or takes a session's bytes.
func (s *service) upload(w http.ResponseWriter, r *http.Request, b *bucket) {
	query := r.URL.Query()
	started := time.Now()
	if r.Method == http.MethodPut {
		given, _ := s.sessions.Load(query.Get("upload_id"))
		begun := given.(*session)
		err := begun.take(r.Body)
		_, total, _ := strings.Cut(r.Header.Get("Content-Range"), "/")
		if err == nil && total != strconv.FormatInt(begun.size, 10) {
			w.Header().Set("Range", fmt.Sprintf("bytes=0-%d", begun.size-1))
			w.WriteHeader(http.StatusPermanentRedirect)
			return
		}
		s.finish(w, b, begun.name, begun.size, begun.sum, nil, begun.started, err)
		return
	}
	if query.Get("uploadType") == "resumable" {
		var given object
		json.NewDecoder(r.Body).Decode(&given)
		id := strconv.FormatInt(started.UnixNano(), 10)
		s.sessions.Store(id, &session{name: given.Name, started: started})
		w.Header().Set("Location", fmt.Sprintf("%s%s?upload_id=%s", s.url, r.URL.Path, id))
		if b.find(given.Name) != nil {
			refuse(w, http.StatusPreconditionFailed, "taken")
		}
		return
	}
	_, parameters, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	parts := multipart.NewReader(r.Body, parameters["boundary"])
	var given object
	metadata, err := parts.NextPart()
	if err == nil {
		err = json.NewDecoder(metadata).Decode(&given)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	media, _ := parts.NextPart()
	data, err := io.ReadAll(media)
	sum := crc32.Checksum(data, castagnoli)
	s.finish(w, b, given.Name, int64(len(data)), sum, data, started, err)
}

// finish makes an uploaded object visible after the time that its bytes take.
func (s *service) finish(w http.ResponseWriter, b *bucket, name string, size int64, sum uint32,
	data []byte, started time.Time, err error) {
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.uploadBytesPer > 0 {
		took := time.Duration(float64(size) / s.uploadBytesPer * float64(time.Second))
		time.Sleep(took - time.Since(started))
	}
	found := describe(name, size, sum)
	found.data = data
	if !b.insert(found) {
		refuse(w, http.StatusPreconditionFailed, "taken")
		return
	}
	reply(w, found)
}

func describe(name string, size int64, sum uint32) *object {
	encoded := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
	return &object{Name: name, Size: strconv.FormatInt(size, 10), Generation: "1",
		Crc32c: encoded, StorageClass: "STANDARD"}
}

func reply(w http.ResponseWriter, content any) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	json.NewEncoder(w).Encode(content)
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(status)
	content := map[string]any{"code": status, "message": message}
	json.NewEncoder(w).Encode(map[string]any{"error": content})
}

// load makes a bucket from the files below a folder, each several times (0/a.jpg, 1/a.jpg), or an
// empty bucket if the folder is "".
func load(folder string, copies int) (*bucket, error) {
	b := &bucket{objects: map[string]*object{}}
	if folder == "" {
		return b, nil
	}
	return b, filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(folder, path)
		sum := crc32.Checksum(data, castagnoli)
		for number := range copies {
			found := describe(fmt.Sprintf("%d/%s", number, filepath.ToSlash(name)), info.Size(), sum)
			found.path = path
			b.insert(found)
		}
		return nil
	})
}

func main() {
	delay := flag.Duration("delay", 30*time.Millisecond, "before each answer")
	upload := flag.Float64("upload", 0, "megabytes a second of an upload; 0 for no limit")
	copies := flag.Int("copies", 1, "of each file, under names of their own")
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	s := &service{url: "http://" + listener.Addr().String(), delay: *delay,
		uploadBytesPer: *upload * 1e6, buckets: map[string]*bucket{}}
	for _, given := range flag.Args() {
		name, folder, _ := strings.Cut(given, "=")
		if s.buckets[name], err = load(folder, *copies); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(s.url)
	log.Fatal(http.Serve(listener, s))
}
