#!/usr/bin/env bash
# Runs a pipeline on Google Cloud Dataflow. Checks first for what would fail late or cost money, and
# adds the flags that a job in production needs. `--help` lists the options; see docs/dataflow.md.
set -euo pipefail

PIPELINES="coco folder table sidecar voc yolo openimages webdataset pairs arrays records"
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# The options and their defaults, named as on the command line but without the dashes.
project='' region='' staging='' job_name='' service_account='' network='' subnetwork=''
sdk_container_image='' build_container=''
machine_type=n2-standard-4 max_workers=10 disk_size_gb=50
labels=() experiments=()
no_public_ips='' allow_cross_region='' wait='' check_only=''

# Set from the command line.
pipeline='' python='' output='' answer=''
flags=() uris=() words=() plans=''

usage() {
  cat <<'EOF'
usage: ./run_dataflow.sh PIPELINE --project P --region R --staging gs://BUCKET [options] -- FLAGS

Runs a pipeline on Google Cloud Dataflow. First it checks credentials, buckets and network.
PIPELINE is coco, folder, table, sidecar, voc, yolo, openimages, webdataset, pairs, arrays
or records.
FLAGS are the pipeline's own: see beam-tfrec PIPELINE --help.

required
  --project PROJECT          project that runs the job and pays for it
  --region REGION            where the job runs, such as europe-west4
  --staging gs://BUCKET      bucket, or path in one, for code and temporary files
the job
  --job_name NAME            default: beam-tfrec-PIPELINE-, the date, the time and four digits
  --labels KEY=VALUE         added to tool=beam-tfrec and command=PIPELINE; may be repeated
  --wait                     wait for the job's end, and exit with the pipeline's exit code
                             (default: submit, print the job's page, exit with 0)
  --check_only               print the command, build the job graph and check it. This uses no
                             network and submits nothing. Beam calls it --dry_run: this option
                             adds that flag, so do not give it among FLAGS
workers
  --machine_type TYPE        default n2-standard-4
  --max_workers N            most workers that autoscaling may start (default 10)
  --disk_size_gb N           disk of each worker, for image and temporary files (default 50)
  --service_account EMAIL    account of the workers (default: Compute Engine's)
  --experiments NAME         a Dataflow experiment; may be repeated
packages
  --sdk_container_image IMAGE  image that `make container` made (default: Beam's image; each
                             worker then installs the packages when it starts)
  --build_container IMAGE    build this image, push it and use it (default tag: the job's name)
network
  --network NETWORK
  --subnetwork NAME          or regions/R/subnetworks/NAME, or its URL
  --no_public_ips            needs an image, and Private Google Access in the subnetwork
  --allow_cross_region       accept buckets in other regions; that traffic costs money

Paths: workers see no local disk, so each path among FLAGS is gs://BUCKET or gs://BUCKET/PATH.
A bucket alone means the whole bucket: --images gs://photos lists all of its objects, and
--output gs://sets writes to its top. An output must not hold sources: give a path, or a second
bucket, where both are in one.

PYTHON names the interpreter (default: .venv/bin/python next to this script, then python3).
EOF
}

fail() { # CODE WHAT REMEDY
  local exit_code=2
  [[ $1 != E-IO-* ]] || exit_code=6
  printf '%s run_dataflow: %s; %s\n' "$1" "$2" "$3" >&2
  exit "$exit_code"
}

note() { printf 'note: %s\n' "$1" >&2; }

# --- the command line

set_option() { # --NAME VALUE
  local name=${1#--} value=$2
  case $name in
    project | region | staging | job_name | labels | machine_type | max_workers | disk_size_gb | service_account | \
      experiments | sdk_container_image | build_container | network | subnetwork) ;;
    *) fail E-ARG "unknown option --$name" "see --help; the pipeline's own flags go after --" ;;
  esac
  [[ -n $value && $value != --* ]] || fail E-ARG "--$name has no value" "give one"
  case $name in
    labels) labels+=("$value") ;;
    experiments) experiments+=("$value") ;;
    *) printf -v "$name" '%s' "$value" ;;
  esac
}

parse_options() {
  local word name
  while (($#)); do
    if [[ $1 == --* ]]; then # hyphens in the name count as underscores
      word=${1%%=*} name=${word#--}
      set -- "--${name//-/_}${1#"$word"}" "${@:2}"
    fi
    case $1 in
      --) flags=("${@:2}"); return ;;
      -h | --help) usage; exit 0 ;;
      --wait | --check_only | --no_public_ips | --allow_cross_region) printf -v "${1#--}" yes ;;
      --wait=* | --check_only=* | --no_public_ips=* | --allow_cross_region=*)
        fail E-ARG "${1%%=*} takes no value" "write it without one" ;;
      --dry_run | --dry_run=*) fail E-ARG "--dry_run is Beam's name" "give --check_only instead" ;;
      --*=*) set_option "${1%%=*}" "${1#*=}" ;;
      --*) set_option "$1" "${2-}"; shift ;;
      *) fail E-ARG "unexpected argument $1" "the pipeline's own flags go after --" ;;
    esac
    shift
  done
}

parse() {
  local LC_ALL=C # in other locales a range such as a-z may hold more letters
  case ${1-} in -h | --help) usage; exit 0 ;; esac
  pipeline=${1-}
  [[ -n $pipeline && " $PIPELINES " == *" $pipeline "* ]] ||
    fail E-ARG "no pipeline is called '$pipeline'" "give one first: $PIPELINES"
  parse_options "${@:2}"
  check_options
  check_flags
}

check_options() {
  local name
  for name in project region staging; do
    [[ -n ${!name} ]] || fail E-ARG "--$name is missing" "give it, see --help"
  done
  staging=${staging%/}
  [[ $project =~ ^[a-z][-a-z0-9:.]+[a-z0-9]$ ]] || fail E-ARG "--project $project is not a project id" "give the id, not the name or number"
  [[ $region =~ ^[a-z]+-[a-z]+[0-9]+$ ]] || fail E-ARG "--region $region is not a region" "give one such as europe-west4"
  [[ $staging =~ ^gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/.*)?$ ]] || fail E-ARG "--staging $staging is not a bucket" "give gs://BUCKET/PATH; BUCKET has 3 characters or more"
  for name in max_workers disk_size_gb; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] || fail E-ARG "--$name ${!name} is not a whole number above 0" "give one"
  done
  check_names
  check_images
  check_subnetwork
}

check_names() {
  local label
  for label in ${labels[@]+"${labels[@]}"}; do
    [[ $label =~ ^[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}$ ]] ||
      fail E-ARG "--labels $label is not a label" "give key=value in lower case, digits, _ and -"
  done
  [[ -n $job_name ]] || job_name=$(printf 'beam-tfrec-%s-%s-%04d' "$pipeline" "$(date -u +%Y%m%d-%H%M%S)" $((RANDOM % 10000)))
  [[ $job_name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    fail E-ARG "--job_name $job_name is not a job name" "give lower case, digits and -, a letter first"
}

check_images() {
  [[ -z $sdk_container_image || -z $build_container ]] ||
    fail E-ARG "--sdk_container_image and --build_container are both given" "leave one out"
  if [[ -n $build_container ]]; then
    [[ ${build_container##*/} == *[:@]* ]] || build_container+=":$job_name" # workers that start later must run the same code
    sdk_container_image=$build_container
  fi
}

check_subnetwork() {
  [[ -z $no_public_ips || -n $sdk_container_image ]] ||
    fail E-ARG "--no_public_ips without an image: workers cannot reach PyPI" "add --build_container or --sdk_container_image"
  case $subnetwork in
    '' | */*) ;;
    *) subnetwork=regions/$region/subnetworks/$subnetwork ;;
  esac
  [[ -z $subnetwork || $subnetwork == *regions/"$region"/subnetworks/* ]] ||
    fail E-ARG "--subnetwork $subnetwork is not in $region" "give one that is, or another --region"
}

# --- the pipeline's flags: passed on unchanged, except those that this script sets

check_flags() {
  local word flag=''
  for word in ${flags[@]+"${flags[@]}"}; do
    if [[ $word == --* ]]; then
      flag=${word%%=*}
      refuse_ours "$flag"
      [[ $flag != --plan ]] || plans=yes
    fi
    [[ $flag != --output || $word == --output ]] || output=${word#--output=}
    [[ $word != *gs://* ]] || uris+=("gs://${word#*gs://}")
  done
  [[ -n $output ]] || fail E-ARG "--output is missing after --" "give gs://BUCKET/PATH"
}

refuse_ours() { # --FLAG
  local instead=''
  case $1 in
    --worker_region | --worker_zone | --zone) instead=--region ;;
    --project | --region | --job_name | --network | --subnetwork | --sdk_container_image | --disk_size_gb) instead=$1 ;;
    --machine_type | --worker_machine_type) instead=--machine_type ;;
    --staging_location | --temp_location) instead=--staging ;;
    --label | --labels) instead=--labels ;;
    --experiment | --experiments) instead=--experiments ;;
    --max_num_workers) instead=--max_workers ;;
    --service_account_email) instead=--service_account ;;
    --use_public_ips | --no_use_public_ips) instead=--no_public_ips ;;
    --worker_harness_container_image) instead=--sdk_container_image ;;
    --dry_run) instead=--check_only ;;
    --runner | --setup_file | --sdk_location | --number_of_worker_harness_threads | --save_main_session | --template_location | --no_wait)
      fail E-ARG "this script sets $1 itself" "leave it out" ;;
    *) return 0 ;;
  esac
  fail E-ARG "$1 is given after --" "give $instead before --"
}

# --- what this machine needs

find_python() {
  local candidate
  for candidate in "${PYTHON:-$HERE/.venv/bin/python}" "${PYTHON:-python3}"; do
    python=$(command -v -- "$candidate") && break
  done
  [[ -n $python ]] || fail E-ARG "there is no ${PYTHON:-python3}" "install Python 3.11, or set PYTHON"
  [[ $python == /* ]] || python=$PWD/$python
}

check_python() {
  local said remedy
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail E-ARG "$python is older than Python 3.11" "set PYTHON to a newer one"
  said=$(cd -- "$HERE" && "$python" -c "import apache_beam.runners.dataflow.internal.apiclient, beam_tfrec.pipelines.$pipeline" 2>&1) || {
    remedy="$(quoted "$python") -m pip install --require-hashes --no-deps -r $(quoted "$HERE/requirements-worker.lock")"
    fail E-ARG "$python lacks a package (${said##*$'\n'})" "run $remedy"
  }
  [[ -z $build_container ]] || "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    fail E-ARG "$python is not Python 3.11, which the image has" "set PYTHON to one that is"
}

check_gcloud() {
  command -v gcloud >/dev/null || fail E-ARG "gcloud is not installed" "see https://cloud.google.com/sdk/docs/install"
  [[ $(gcloud version --format='value("Google Cloud SDK")' 2>/dev/null) =~ ^[0-9]+\.[0-9]+ ]] ||
    fail E-ARG "gcloud version fails" "run it, and fix what it reports"
  gcloud auth application-default print-access-token >/dev/null 2>&1 ||
    fail E-IO-AUTH "there are no Application Default Credentials" "run gcloud auth application-default login"
}

# --- buckets and network

ask() { # COMMAND...: sets `answer` to its output, or to the last line of its errors
  answer=$("$@" 2>/dev/null) && return
  answer=$("$@" 2>&1 >/dev/null) || true
  answer=${answer##*$'\n'}
  return 1
}

bucket_of() { # URI
  local path=${1#gs://}
  printf '%s' "${path%%/*}"
}

check_buckets() {
  local uri bucket seen=' '
  for uri in "$staging" ${uris[@]+"${uris[@]}"}; do
    bucket=$(bucket_of "$uri")
    [[ $seen == *" $bucket "* ]] || check_bucket "$bucket"
    seen+="$bucket "
  done
}

check_bucket() { # BUCKET
  local place kind regions
  if ! ask gcloud storage buckets describe "gs://$1" --format='value(location,location_type,data_locations)'; then
    bucket_fault "$1" "$answer"
    return 0
  fi
  IFS=$'\t' read -r place kind regions <<<"$answer"
  if ! holds_region "$place" "$regions"; then
    [[ -n $allow_cross_region ]] ||
      fail E-ARG "gs://$1 is in $place${regions:+ ($regions)}, the job in $region: traffic between them costs money" \
        "choose a region of the bucket, or add --allow_cross_region"
  elif [[ $kind == multi-region ]]; then
    note "gs://$1 is in the multi-region $place: Google charges for reads from it even by workers in $region"
  fi
}

bucket_fault() { # BUCKET MESSAGE
  case $2 in
    *"not found: 404"*) fail E-ARG "gs://$1 does not exist" "create it, or correct its name" ;;
  esac
  if [[ $1 != "$(bucket_of "$staging")" && $1 != "$(bucket_of "$output")" ]]; then # perhaps a public bucket of another project
    note "the location of gs://$1 is unknown without storage.buckets.get, so it is not compared with $region"
    return 0
  fi
  fail E-IO-AUTH "gs://$1 cannot be looked up ($2)" "run gcloud auth login, or ask for storage.buckets.get on it"
}

holds_region() { # LOCATION REGIONS: succeeds if such a bucket keeps its data in the job's region
  local place=${1,,} regions=${2,,}
  case $place in # Google does not list the regions of these dual-regions
    nam4) regions=${regions:-us-central1;us-east1} ;;
    eur4) regions=${regions:-europe-north1;europe-west4} ;;
    asia1) regions=${regions:-asia-northeast1;asia-northeast2} ;;
  esac
  [[ -z $regions ]] || { [[ ";$regions;" == *";$region;"* ]]; return; }
  case $place in
    us) [[ $region == us-* ]] ;;
    eu) [[ $region == europe-* && $region != europe-west2 && $region != europe-west6 ]] ;; # not London, not Zurich
    asia) [[ $region == asia-* ]] ;;
    *) [[ $region == "$place" ]] ;;
  esac
}

check_network() {
  [[ -n $no_public_ips ]] || return 0
  if [[ -z $subnetwork ]]; then
    note "without public IPs, the subnetwork of $region needs Private Google Access: not checked without --subnetwork"
    return 0
  fi
  local host=$project
  [[ $subnetwork != *projects/* ]] || { host=${subnetwork#*projects/} host=${host%%/*}; } # of a shared VPC
  ask gcloud compute networks subnets describe "${subnetwork##*/}" --project="$host" --region="$region" \
    --format='value(privateIpGoogleAccess)' ||
    fail E-IO-AUTH "$subnetwork cannot be looked up ($answer)" "correct its name, or ask for compute.subnetworks.get"
  [[ $answer == True ]] ||
    fail E-ARG "$subnetwork has no Private Google Access: workers without public IPs could not reach storage" \
      "run gcloud compute networks subnets update ${subnetwork##*/} --project=$host --region=$region --enable-private-ip-google-access"
}

# --- the image

build_image() {
  [[ -n $build_container ]] || return 0
  "${words[@]}" --dry_run=True >/dev/null || exit # wrong flags, before anything is built
  if docker info >/dev/null 2>&1; then
    docker build --platform=linux/amd64 --tag="$build_container" "$HERE" >&2 ||
      fail E-ARG "docker could not build $build_container" "see what it says above"
    docker push "$build_container" >&2 ||
      fail E-IO-AUTH "docker could not push $build_container" "run gcloud auth configure-docker ${build_container%%/*}"
  else
    gcloud builds submit --project="$project" --tag="$build_container" "$HERE" >&2 ||
      fail E-IO-AUTH "Cloud Build could not build or push $build_container" "see what it says above"
  fi
}

# --- the command

compose() {
  local word
  words=("$python" -m "beam_tfrec.pipelines.$pipeline"
    --runner=DataflowRunner "--project=$project" "--region=$region" "--job_name=$job_name"
    "--staging_location=$staging/staging" "--temp_location=$staging/temp"
    --labels=tool=beam-tfrec "--labels=command=$pipeline")
  for word in ${labels[@]+"${labels[@]}"}; do words+=("--labels=$word"); done
  words+=("--worker_machine_type=$machine_type" --number_of_worker_harness_threads=4
    "--max_num_workers=$max_workers" "--disk_size_gb=$disk_size_gb")
  for word in ${experiments[@]+"${experiments[@]}"}; do words+=("--experiments=$word"); done
  if [[ -n $sdk_container_image ]]; then
    words+=("--sdk_container_image=$sdk_container_image" --sdk_location=container)
  else
    words+=(--setup_file=./setup.py) # Beam fails without the ./
  fi
  [[ -z $service_account ]] || words+=("--service_account_email=$service_account")
  [[ -z $network ]] || words+=("--network=$network")
  [[ -z $subnetwork ]] || words+=("--subnetwork=$subnetwork")
  [[ -z $no_public_ips ]] || words+=(--no_use_public_ips)
  [[ -n $wait ]] || words+=(--no_wait)
  words+=(${flags[@]+"${flags[@]}"})
}

quoted() { # WORD: with quotes for a shell where it needs them
  if [[ $1 =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

print_command() {
  local word
  printf 'cd %s && %s' "$(quoted "$HERE")" "$(quoted "${words[0]}")"
  for word in "${words[@]:1}"; do
    if [[ $word == --* ]]; then printf ' \\\n  '; else printf ' '; fi
    quoted "$word"
  done
  printf '\n'
}

main() {
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || fail E-ARG "bash $BASH_VERSION is too old" "install bash 4.4 or newer"
  parse "$@"
  find_python
  check_python
  compose
  cd -- "$HERE"
  if [[ -n $check_only ]]; then
    print_command
    exec "${words[@]}" --dry_run=True
  fi
  [[ -z $plans ]] || exec "${words[@]}" # a plan runs on this machine: there is no job to check
  check_gcloud
  check_buckets
  check_network
  build_image
  exec "${words[@]}"
}

main "$@"
